"""Encodes a response as the body of an HTTP inference reply: JSON, then binary data.

Layout, field order and numbers are Triton's. Tensors with binary data are not copied.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from reference_server.codecs import rapid_json
from reference_server.codecs.inference import Labels, ResponseForm, formed, write
from reference_server.codecs.json_tensor_reader import BINARY_ONLY
from reference_server.codecs.rapid_json import write_string
from reference_server.core.errors import invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.request import InferResponse
from reference_server.core.tensor import DataType, Shape, Tensor

#: JSON up to this length is joined. Longer parts are cheaper to send one by one than to copy.
_JOINED_BYTES = 1 << 16
#: The most outputs of a cached response, and the most cached responses.
_MOST_OUTPUTS, _MOST_CACHED = 16, 1024


class EncodedResponse(NamedTuple):
    """The parts of a body: the JSON, in one part if it is short, then binary data in output order.

    `json_length` is the value of a header, or None without binary data, where no header is needed.
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
                data.append(_data(tensor))
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
            text += (head, b',"data":[', *_data(tensor), b"]},")
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


def _data(tensor: Tensor) -> list[bytes]:
    datatype = tensor.datatype
    if datatype in BINARY_ONLY:
        raise invalid_arg(
            f"sending {datatype.value} data via JSON is not supported. Please use the "
            "binary data format for output"
        )
    if tensor.is_raw and datatype is not None and datatype.is_bytes:
        written = rapid_json.write_packed_strings(tensor.raw(), prod(tensor.shape))
        if written is not None:
            return written
    return rapid_json.write_elements(tensor.array())


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
    return rapid_json.write_array(np.array([value]))[1:-1]
