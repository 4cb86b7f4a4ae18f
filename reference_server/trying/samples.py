"""Sample requests for a model, from its signature and from files of the clone."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reference_server.core import byte_strings
from reference_server.core.tensor import CONFIG_DATATYPES, DataType, datatype_of
from reference_server.trying.templates import scripts

Inputs = dict[str, npt.NDArray[Any]]
#: An image of 16 x 16 pixels.
_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqM"
    "yP/L2u71////m8H////6/+b9//j/2wBDASstLTw1PHZBQXb4pYyl+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4"
    "+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj/wAARCAAQABADASIAAhEBAxEB/8QAFgABAQEAAAAAAAAAAAAAAAAAAgAB/8QA"
    "FxABAAMAAAAAAAAAAAAAAAAAADJysf/EABQBAQAAAAAAAAAAAAAAAAAAAAT/xAAWEQEBAQAAAAAAAAAAAAAAAAAAMXH/"
    "2gAMAwEAAhEDEQA/AMhXCQwrg90iP//Z"
)
_TEXT = b"Where is my parcel?"
_IMAGE_NAME = re.compile(r"im(g|age)|jpe?g|png|raw|picture|photo|frame|bytes", re.I)
_AUDIO_NAME = re.compile(r"audio|wav|sound|speech|samples", re.I)
_INPUTS = re.compile(r'"inputs"\s*:\s*\[')
_COMMENT = re.compile(r"^[ \t]*#[ \t]?", re.M)
_FEW = 64
#: Sizes of free dimensions, in the order in which they are tried.
_FREE_SIZES = (8, 1, 224, 640, 16)
_MOST_TRIES = 6
_LARGEST_FILE = 8 << 20
_LARGEST_INPUT = 1 << 26


class Samples:
    """Makes sample requests; `clone` is searched for requests, an image and a recording."""

    def __init__(self, clone: Path) -> None:
        self.image, self.audio = _JPEG, b""
        self._found = [
            request
            for file in scripts(clone)
            for request in _requests_in(file.read_text(encoding="utf-8", errors="replace"))
        ]
        for where, folders, names in os.walk(clone):
            folders[:] = [name for name in folders if name[0] != "."]
            for name in sorted(names):
                path = Path(where, name)
                if path.suffix.lower() in (".jpg", ".jpeg") and self.image is _JPEG:
                    self.image = _read(path, b"\xff\xd8") or _JPEG
                elif path.suffix.lower() == ".wav" and not self.audio:
                    self.audio = _read(path, b"RIFF")

    def requests(self, config: Mapping[str, Any]) -> Iterator[Inputs]:
        """Yield different requests for a model.

        Args:
            config: The model's configuration, as `GET /v2/models/NAME/config` returns it.
        """
        own = [each for each in config["input"] if not each.get("optional")] or config["input"]
        for request in self._found:
            if {*_names(own)} <= request.keys() <= {*_names(config["input"])}:
                yield request
        seen: set[bytes] = set()
        for number in range(_MOST_TRIES):
            inputs: Inputs = {}
            is_batched = int(config["max_batch_size"]) > 0
            for entry in own:
                array = self._value(entry, number, is_batched=is_batched)
                if array is None:
                    break
                inputs[entry["name"]] = array[np.newaxis] if is_batched else array
            key = b"".join(array.tobytes()[:4096] + str(array.shape).encode()
                           if array.dtype != object else repr(array).encode()
                           for array in inputs.values())  # fmt: skip
            if len(inputs) == len(own) and key not in seen:
                seen.add(key)
                yield inputs

    def _value(
        self, entry: Mapping[str, Any], number: int, *, is_batched: bool
    ) -> npt.NDArray[Any] | None:
        """Return the value of one input in request `number`; None if it would be too large."""
        name, datatype = entry["name"], CONFIG_DATATYPES[entry["data_type"]]
        dims = [int(dim) for dim in entry["dims"]]
        is_audio = bool(_AUDIO_NAME.search(name))
        if datatype is DataType.BYTES:
            texts = self._texts(name)
            shape = [dim if dim > 0 else 1 for dim in dims]
            return np.full(shape, texts[min(number, len(texts) - 1)], np.object_)
        if len(dims) > 1 and dims[0] < 0 and not is_batched:
            dims[0] = 1  # probably the number of rows
        if datatype is DataType.UINT8 and dims in ([-1], [1, -1]) and number % 2 == 0:
            file = self.audio if is_audio and self.audio else self.image
            return np.frombuffer(file, np.uint8).reshape([1] * (len(dims) - 1) + [-1])
        size = 16000 if is_audio and number == 0 else _FREE_SIZES[number % len(_FREE_SIZES)]
        if len(dims) >= 3 and number == 0:
            size = 224
        shape = [dim if dim > 0 else size for dim in dims]
        count = math.prod(shape)
        if count > _LARGEST_INPUT:
            return None
        if datatype is DataType.BOOL:
            return np.full(shape, number % 2 == 1, np.bool_)
        if re.search(r"len|size_?$|width|height", name) and count <= 2:
            return np.full(shape, size, datatype.numpy)
        if np.issubdtype(datatype.numpy, np.floating) and count > _FEW:
            return (np.arange(count) % 17 / 17).astype(datatype.numpy).reshape(shape)
        value = 0.5 if np.issubdtype(datatype.numpy, np.floating) else 1
        if number > 2:
            value = 0 if number == 3 else 1
        return np.full(shape, value, datatype.numpy)

    def _texts(self, name: str) -> Sequence[bytes]:
        encoded = base64.b64encode(self.image)
        text = [_TEXT, b'{"text": "Where is my parcel?"}', b"1"]
        if _AUDIO_NAME.search(name):
            return [*([self.audio] if self.audio else []), *text]
        if _IMAGE_NAME.search(name):
            return [self.image, encoded, *text]
        return [text[0], self.image, encoded, *text[1:]]


def _names(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    return (each["name"] for each in entries)


def _requests_in(text: str) -> Iterator[Inputs]:
    """Yield the inference requests in JSON that a text or its comments contain."""
    text = _COMMENT.sub("", text)
    for match in _INPUTS.finditer(text):
        try:
            found, _ = json.JSONDecoder().raw_decode(text, text.rindex("{", 0, match.start()))
            yield {each["name"]: _array(each) for each in found["inputs"]}
        except (ValueError, KeyError, TypeError):  # an abbreviated request, or other JSON
            continue


def _array(entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    datatype = DataType(entry["datatype"])
    if datatype is not DataType.BYTES:
        return np.array(entry["data"], datatype.numpy).reshape(entry["shape"])
    flat = [str(each).encode() for each in np.array(entry["data"], np.object_).reshape(-1)]
    return byte_strings.as_array(flat, tuple(entry["shape"]))


def _read(path: Path, magic: bytes) -> bytes:
    try:
        if not 0 < path.stat().st_size <= _LARGEST_FILE:
            return b""
        content = path.read_bytes()
    except OSError:
        return b""
    return content if content.startswith(magic) else b""


def body(inputs: Inputs, config: Mapping[str, Any]) -> tuple[bytes, int]:
    """Return the body of an inference request over HTTP, and the length of its JSON.

    The length is 0 if the body has no binary data.
    """
    types = {each["name"]: CONFIG_DATATYPES[each["data_type"]] for each in config["input"]}
    is_short = sum(array.size for array in inputs.values()) <= _FEW and all(
        all(_is_plain(each) for each in array.flat)
        for array in inputs.values()
        if array.dtype == object
    )
    entries: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for name, array in inputs.items():
        entry = {"name": name, "datatype": types[name].value, "shape": list(array.shape)}
        if is_short:
            flat = array.reshape(-1).tolist()
            entry["data"] = [each.decode() if isinstance(each, bytes) else each for each in flat]
        else:
            is_text = array.dtype == object
            data = byte_strings.serialize(array) if is_text else array.tobytes()
            binary.append(data)
            entry["parameters"] = {"binary_data_size": len(data)}
        entries.append(entry)
    head: dict[str, Any] = {"inputs": entries}
    if config.get("sequence_batching") is not None:
        head["parameters"] = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    text = json.dumps(head).encode()
    return b"".join((text, *binary)), len(text) if binary else 0


def _is_plain(text: bytes) -> bool:
    return len(text) <= 200 and text.isascii() and b"'" not in text


def shown(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return names, types, shapes and the first values of tensors, in one line."""
    parts = []
    for name, array in arrays.items():
        shape = "x".join(map(str, array.shape)) or "scalar"
        values = ", ".join(_short(each) for each in array.reshape(-1)[:3].tolist())
        more = ", ..." if array.size > 3 else ""
        datatype = datatype_of(array)
        assert datatype is not None, "inputs and outputs have a type of the protocol"
        parts.append(f"{name} {datatype.value} {shape} [{values}{more}]")
    return "; ".join(parts)


def _short(value: object) -> str:
    if isinstance(value, bytes):
        text = value[:40].decode("utf-8", "replace")
        text = "".join(each if each.isprintable() else "." for each in text)
        return f'"{text}"' + ("..." if len(value) > 40 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
