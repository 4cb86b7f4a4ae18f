"""A core response to the body of an HTTP inference reply: JSON, then binary data.

Layout, field order and numbers are Triton's; tensors with binary data are not copied.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from reference_server.codecs import json_data
from reference_server.codecs.json_data import encode_string
from reference_server.codecs.response_forms import Labels, ResponseForm, formed, write
from reference_server.core.dtypes import DataType
from reference_server.core.errors import invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.request import InferResponse
from reference_server.core.tensor import Shape, Tensor

#: JSON up to this length is joined: longer parts are dearer to copy than to send by themselves.
_JOINED_BYTES = 1 << 16
#: What is remembered of responses: no more outputs of one, and no more of them.
_MOST_OUTPUTS, _MOST_KNOWN = 16, 1024


class EncodedResponse(NamedTuple):
    """The parts of a body: the JSON, in one part if it is short, then binary data in output order.

    `json_length` is None if the body is JSON alone; then no header announces it.
    """

    parts: list[bytes | memoryview]
    json_length: int | None


class InferResponseEncoder:
    """Encodes responses. JSON that says what was said before, of other data, is made once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], bytes] = {}  # without the id

    def encode(
        self, response: InferResponse, form: ResponseForm, signature: Signature, labels: Labels
    ) -> EncodedResponse:
        """As the function `encode`. Any thread."""
        outputs = response.outputs
        if response.parameters or len(outputs) > _MOST_OUTPUTS:
            return encode(response, form, signature, labels)
        said: list[object] = [response.model_name, response.model_version]
        binary: list[bytes | memoryview] = []
        for tensor in outputs:
            own = form.of(tensor.name)
            if not own.binary or own.classes or own.buffer is not None:
                return encode(response, form, signature, labels)
            raw = tensor.raw()
            size = len(raw)
            if size:
                binary.append(raw)
            said += (tensor.name, tensor.datatype, tensor.shape, size)
        key = tuple(said)
        text = self._known.get(key)
        if text is None:
            (whole, *_), _ = encode(response, form, signature, labels)
            text = bytes(whole[len(_opening(response)) :])
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = text
        text = _opening(response) + text
        return EncodedResponse([text, *binary], len(text) if binary else None)


def _opening(response: InferResponse) -> bytes:
    return b'{"id":%b,' % encode_string(response.id) if response.id else b"{"


def encode(
    response: InferResponse, form: ResponseForm, signature: Signature, labels: Labels
) -> EncodedResponse:
    """The body of a response without error; outputs with a buffer are written there.

    Raises ServerError if an output has no such form, or does not fit its buffer.
    """
    text = [
        _opening(response),
        _model(response.model_name, response.model_version),
        _parameters(response),
        b',"outputs":[',
    ]
    binary: list[bytes | memoryview] = []
    for tensor, output_form in formed(response, form, signature, labels):
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
            text += (head, b',"data":', *_data(tensor), b"},")
    text[-1] = text[-1].removesuffix(b",") + b"]}"
    length = sum(map(len, text))
    parts: list[bytes | memoryview] = [b"".join(text)] if length <= _JOINED_BYTES else [*text]
    return EncodedResponse([*parts, *binary], length if binary else None)


@lru_cache(_MOST_KNOWN)
def _model(name: str, version: int) -> bytes:
    return b'"model_name":%b,"model_version":"%d"' % (encode_string(name), version)


@lru_cache(_MOST_KNOWN)
def _head(name: str, datatype: DataType | None, shape: Shape) -> bytes:
    assert datatype is not None
    return b'{"name":%b,"datatype":"%b","shape":[%b]' % (
        encode_string(name),
        datatype.value.encode(),
        ",".join(map(str, shape)).encode(),
    )


def _data(tensor: Tensor) -> list[bytes]:
    if tensor.datatype in (DataType.FP16, DataType.BF16):
        raise invalid_arg(
            f"sending {tensor.datatype.value} data via JSON is not supported. Please use the "
            "binary data format for output"
        )
    if tensor.datatype is DataType.BYTES and tensor.is_raw:
        written = json_data.string_pieces(tensor.raw(), prod(tensor.shape))
        if written is not None:
            return written
    return json_data.pieces(tensor.array())


def _parameters(response: InferResponse) -> bytes:
    if not response.parameters:
        return b""
    pairs = b",".join(
        encode_string(key) + b":" + encode_parameter(value) for key, value in response.parameters
    )
    return b',"parameters":{%b}' % pairs


def encode_parameter(value: bool | int | float | str) -> bytes:
    """A parameter of a response as JSON."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return encode_string(value)
    if isinstance(value, int):
        return b"%d" % value
    return json_data.encode(np.array([value]))[1:-1]
