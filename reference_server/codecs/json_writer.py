"""Writes JSON byte for byte like RapidJSON's writer: strings, elements, and inference responses.

orjson prints integers and booleans; `grisu` prints doubles. The body of an inference response is
JSON, then binary data. Layout and field order are Triton's. Tensors with binary data are not
copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from reference_server.codecs import grisu, json_arrays
from reference_server.codecs.inference import Labels, ResponseForm, outputs_with_forms, write
from reference_server.codecs.json_tensor_reader import BINARY_ONLY
from reference_server.core.byte_strings import element_bytes
from reference_server.core.errors import invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.request import InferResponse
from reference_server.core.tensor import DataType, Shape, Tensor

_Array = npt.NDArray[np.generic]

#: Doubles per piece: some milliseconds of work.
_DOUBLES = 1 << 15
#: Integers or strings per piece: some milliseconds of work.
_OTHERS = 1 << 17
#: The longest wire form that `write_packed_strings` writes: a millisecond of work.
_MOST_PACKED = 1 << 20


def write_array(array: _Array) -> bytes:
    """Return the elements of `array` in C order as a flat JSON array, such as `b"[1.0,2.5]"`.

    Args:
        array: BOOL is written as `true` and `false`. FP32 is widened to double. NaN and the
            infinities are bare words. Elements of an object or `S<n>` array become strings as
            `write_string` writes them: `bytes` as they are, other values as the UTF-8 of their
            `str`.

    Raises:
        ValueError: The dtype has no JSON form, such as float16.
    """
    return b"[%b]" % b"".join(write_elements(array))


def write_elements(array: _Array) -> list[bytes]:
    """Return the text of `write_array` without brackets, in pieces of some milliseconds of work."""
    write, most = _writer(array.dtype)
    flat = array.ravel()
    if flat.size <= most:
        return [write(flat)]
    written: list[bytes] = []
    for start in range(0, flat.size, most):
        written += (write(flat[start : start + most]), b",")
    written.pop()
    return written


def write_packed_strings(wire: memoryview, count: int) -> list[bytes] | None:
    """Return what `write_elements` returns, for a BYTES tensor in its wire form.

    Returns None if the wire form is long, is malformed, does not have `count` elements, or needs
    very many escapes. `write_elements` handles these cases.
    """
    if len(wire) > _MOST_PACKED:
        return None
    text = json_arrays.write_strings(wire, count)
    return None if text is None else [text]


@lru_cache(64)
def _writer(dtype: np.dtype[Any]) -> tuple[Callable[[_Array], bytes], int]:
    """Return the function that writes comma-separated elements, and the most elements per call."""
    if dtype.kind in "OS":
        return _write_strings, _OTHERS
    if dtype.kind == "f" and dtype.itemsize > 2:
        return _write_doubles, _DOUBLES
    if dtype.kind in "biu":
        return _write_integers, _OTHERS
    raise ValueError(f"{dtype} has no JSON form")


def _write_integers(elements: _Array) -> bytes:
    if elements.dtype.kind == "b":
        # Any byte but zero is true; orjson would write 2 as false.
        elements = elements.view(np.uint8) != 0
    return orjson.dumps(elements, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _write_doubles(elements: _Array) -> bytes:
    if elements.size == 0:
        return b""
    if elements.dtype != np.float32:
        elements = elements.astype(np.float64, copy=False)
    return grisu.write_doubles(elements.tobytes(), elements.itemsize)


def _write_strings(elements: _Array) -> bytes:
    texts = [element_bytes(element) for element in elements.tolist()]
    if not texts:
        return b""
    # One search in all texts is much faster than one substitution for each text.
    if _ESCAPED.search(b"".join(texts)):
        return b'"' + _escape_joined(texts) + b'"'
    return b'"' + b'","'.join(texts) + b'"'


_ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
_ESCAPES = {bytes([code]): b"\\u%04X" % code for code in range(0x20)} | {
    b"\b": b"\\b",
    b"\t": b"\\t",
    b"\n": b"\\n",
    b"\f": b"\\f",
    b"\r": b"\\r",
    b'"': b'\\"',
    b"\\": b"\\\\",
}


def write_string(text: str | bytes) -> bytes:
    """Return `text` in quotation marks with RapidJSON's escapes; other bytes stay as they are.

    A `str` is encoded with `surrogateescape`, which inverts the decoding by `rapid_json.loads`.
    """
    if isinstance(text, bytes):
        raw = text
    else:
        try:
            raw = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # a model's error text may contain any surrogate
            raw = text.encode("utf-8", "replace")
    return b'"' + _escape(raw) + b'"'


#: Longer texts are escaped by NumPy in pieces of this length: less than a millisecond of work each.
_PIECE = 1 << 13
_LONGEST_ESCAPE = 6
#: At most this many texts are escaped one by one.
_FEW_TEXTS = 16
#: The code of a separator of strings, larger than any byte.
_SEPARATOR = 256
#: The written form of each code, and its length.
_FORMS = np.zeros((_SEPARATOR + 1, _LONGEST_ESCAPE), np.uint8)
_LENGTHS = np.ones(_SEPARATOR + 1, np.uint8)
for _code, _form in (
    {raw[0]: form for raw, form in _ESCAPES.items()} | {_SEPARATOR: b'","'}
).items():
    _FORMS[_code, : len(_form)] = list(_form)
    _LENGTHS[_code] = len(_form)


def _escape(raw: bytes) -> bytes:
    if len(raw) <= _PIECE:
        return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], raw)
    pieces = (raw[start : start + _PIECE] for start in range(0, len(raw), _PIECE))
    return b"".join(
        _escape_codes(np.frombuffer(each, np.uint8)) if _ESCAPED.search(each) else each
        for each in pieces
    )


def _escape_joined(texts: list[bytes]) -> bytes:
    """Return `texts` escaped and joined by `","`, without a call for each of many texts."""
    if len(texts) <= _FEW_TEXTS:
        return b'","'.join(map(_escape, texts))
    codes = np.frombuffer(b"\0".join(texts), np.uint8).astype(np.uint16)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    codes[(np.cumsum(lengths + 1) - 1)[:-1]] = _SEPARATOR
    starts = range(0, len(codes), _PIECE)
    return b"".join(_escape_codes(codes[start : start + _PIECE]) for start in starts)


def _escape_codes(codes: npt.NDArray[np.integer[Any]]) -> bytes:
    """Repeat each code as often as its form is long, then write the forms of escaped codes."""
    lengths = _LENGTHS[codes]
    written = np.repeat(codes, lengths).astype(np.uint8, copy=False)
    escaped = np.flatnonzero(lengths > 1)
    ends = np.cumsum(lengths, dtype=np.int32)[escaped]
    lengths, codes = lengths[escaped], codes[escaped]
    for place in range(_LONGEST_ESCAPE):
        reached = lengths > place
        written[(ends - lengths)[reached] + place] = _FORMS[codes[reached], place]
    return written.tobytes()


# -- inference responses

#: JSON up to this length is joined. Longer parts are cheaper to send one by one than to copy.
_JOINED_BYTES = 1 << 16
#: The most outputs of a cached response, and the most cached responses.
_MOST_OUTPUTS, _MOST_CACHED = 16, 1024


class EncodedResponse(NamedTuple):
    """The parts of a body: the JSON, in one part if it is short, then binary data in output order.

    `json_length` is the value of Inference-Header-Content-Length; None without binary data.
    """

    parts: list[bytes | memoryview]
    json_length: int | None


class InferResponseEncoder:
    """Encodes responses, with a cache of the constant parts of their JSON."""

    def __init__(self) -> None:
        # The JSON between the id and the `data` of the outputs, by the properties of the outputs.
        self._cache: dict[tuple[object, ...], list[bytes]] = {}

    def encode(
        self, response: InferResponse, form: ResponseForm, signature: Signature, labels: Labels
    ) -> EncodedResponse:
        """Return what the function `encode` returns. Any thread."""
        outputs = response.outputs
        if response.parameters or not form.is_plain or len(outputs) > _MOST_OUTPUTS:
            return encode(response, form, signature, labels)
        properties: list[object] = [response.model_name, response.model_version]
        data: list[list[bytes]] = []
        binary: list[bytes | memoryview] = []
        for tensor in outputs:
            size = None
            if form.of(tensor.name).binary:
                raw = tensor.raw()
                size = len(raw)
                if size:
                    binary.append(raw)
            else:
                data.append(write_data(tensor))
            properties += (tensor.name, tensor.datatype, tensor.shape, size)
        key = tuple(properties)
        constant = self._cache.get(key)
        if constant is None:
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            constant = self._cache[key] = _constant_parts(response, form)
        if not data:
            head = _opening(response) + constant[0]
            return EncodedResponse([head, *binary], len(head) if binary else None)
        text = [_opening(response), constant[0]]
        for pieces, behind in zip(data, constant[1:], strict=True):
            text += pieces
            text.append(behind)
        return _encoded(text, binary)


def _constant_parts(response: InferResponse, form: ResponseForm) -> list[bytes]:
    """Return the JSON around the `data` of plain outputs: no classes, no buffers."""
    parts = [_model(response.model_name, response.model_version) + b',"outputs":[']
    for number, tensor in enumerate(response.outputs):
        if number:
            parts[-1] += b","
        parts[-1] += _head(tensor.name, tensor.datatype, tensor.shape)
        if form.of(tensor.name).binary:
            parts[-1] += b',"parameters":{"binary_data_size":%d}}' % len(tensor.raw())
        else:
            parts[-1] += b',"data":['
            parts.append(b"]}")
    parts[-1] += b"]}"
    return parts


def _encoded(text: list[bytes], binary: list[bytes | memoryview]) -> EncodedResponse:
    length = sum(map(len, text))
    parts: list[bytes | memoryview] = [b"".join(text)] if length <= _JOINED_BYTES else [*text]
    return EncodedResponse([*parts, *binary], length if binary else None)


def _opening(response: InferResponse) -> bytes:
    return b'{"id":%b,' % write_string(response.id) if response.id else b"{"


def encode(
    response: InferResponse, form: ResponseForm, signature: Signature, labels: Labels
) -> EncodedResponse:
    """Encode a response without error; outputs with a buffer are written to it.

    Raises ServerError if an output cannot have the requested form, or does not fit its buffer.
    """
    text = [
        _opening(response),
        _model(response.model_name, response.model_version),
        _parameters(response),
        b',"outputs":[',
    ]
    binary: list[bytes | memoryview] = []
    for tensor, output_form in outputs_with_forms(response, form, signature, labels):
        head = _head(tensor.name, tensor.datatype, tensor.shape)
        if output_form.buffer is not None:
            write(tensor, output_form.buffer)
            text += (head, b"},")
        elif output_form.binary:
            raw = tensor.raw()
            text += (head, b',"parameters":{"binary_data_size":%d}},' % len(raw))
            if len(raw):
                binary.append(raw)
        else:
            text += (head, b',"data":[', *write_data(tensor), b"]},")
    text[-1] = text[-1].removesuffix(b",") + b"]}"
    return _encoded(text, binary)


@lru_cache(_MOST_CACHED)
def _model(name: str, version: int) -> bytes:
    return b'"model_name":%b,"model_version":"%d"' % (write_string(name), version)


@lru_cache(_MOST_CACHED)
def _head(name: str, datatype: DataType | None, shape: Shape) -> bytes:
    assert datatype is not None
    return b'{"name":%b,"datatype":"%b","shape":[%b]' % (
        write_string(name),
        datatype.value.encode(),
        ",".join(map(str, shape)).encode(),
    )


def write_data(tensor: Tensor) -> list[bytes]:
    """Return the comma-separated elements of an output, in pieces of some milliseconds of work.

    Raises:
        ServerError: INVALID_ARG; its datatype has no JSON form.
    """
    datatype = tensor.datatype
    if datatype in BINARY_ONLY:
        raise invalid_arg(
            f"sending {datatype.value} data via JSON is not supported. Please use the "
            "binary data format for output"
        )
    if tensor.is_raw and datatype is not None and datatype.is_bytes:
        written = write_packed_strings(tensor.raw(), prod(tensor.shape))
        if written is not None:
            return written
    return write_elements(tensor.array())


def _parameters(response: InferResponse) -> bytes:
    if not response.parameters:
        return b""
    pairs = b",".join(
        write_string(key) + b":" + encode_parameter(value) for key, value in response.parameters
    )
    return b',"parameters":{%b}' % pairs


def encode_parameter(value: bool | int | float | str) -> bytes:
    """Encode a parameter of a response as JSON."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return write_string(value)
    if isinstance(value, int):
        return b"%d" % value
    return write_array(np.array([value]))[1:-1]
