"""The body of an HTTP inference request to a core request: JSON, JSON with binary data, or raw.

Faults are found, and answered, in the order in which Triton finds them.
"""

from __future__ import annotations

import re

import numpy as np

from reference_server.codecs import json_data, rapid_json
from reference_server.codecs.header_memo import LONGEST_HEADER, HeaderMemo
from reference_server.codecs.infer_options import OutputForm, ResponseForm
from reference_server.codecs.infer_outputs import read_outputs
from reference_server.codecs.infer_parameters import read_parameters
from reference_server.codecs.infer_raw import decode_raw
from reference_server.codecs.rapid_json_reader import JsonValue
from reference_server.codecs.spans import Spans, read_span
from reference_server.core import dtypes
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.ports import Regions
from reference_server.core.request import InferRequest, ResponseSink
from reference_server.core.tensor import Array, Shape, Tensor

_RAW_FORM = ResponseForm(OutputForm(binary=True))
#: Twenty digits are more than any length; Python refuses to read thousands.
_LEADING_INTEGER = re.compile(r"\s*([+-]?\d{1,20})")
#: No number of JSON is one of theirs.
_BINARY_ONLY = (DataType.FP16, DataType.BF16)
_CONTENT_FIELDS = ("binary_data_size", "shared_memory_region")


def json_length(header: str | None, body_length: int) -> int:
    """How many bytes of the body are JSON; 0 says that the body is a raw tensor.

    `header` is the text of `Inference-Header-Content-Length`, read as C reads numbers: what
    leads it counts. Raises ServerError INVALID_ARG if it is not a length within the body.
    """
    if header is None:
        return body_length
    match = _LEADING_INTEGER.match(header)
    length = int(match[1]) if match else 0
    if not 0 <= length <= body_length:
        raise invalid_arg(
            f"inference header size should be in range (0, {body_length}), got: {header}"
        )
    return length


class InferRequestDecoder:
    """Reads bodies. Used by one thread, since it remembers headers that it has read."""

    def __init__(self) -> None:
        self._memo = HeaderMemo()

    def decode(
        self,
        signature: Signature,
        body: memoryview,
        length: int,
        sink: ResponseSink,
        regions: Regions,
    ) -> tuple[InferRequest, ResponseForm]:
        """The request in `body`, whose first `length` bytes are JSON, and its response's form.

        Tensors with binary data are views of `body`, those in shared memory of `regions`. Raises
        ServerError.
        """
        if length == 0:
            return decode_raw(signature, body, sink), _RAW_FORM
        spans = Spans()
        if length > LONGEST_HEADER:
            return _decode_json(signature, body, length, sink, regions, spans)
        header = bytes(body[:length])
        known = self._memo.recall(header, signature.name, body[length:], sink, regions)
        if known is not None:
            return known
        request, form = _decode_json(signature, body, length, sink, regions, spans)
        if all(tensor.is_raw for tensor in request.inputs.values()):
            self._memo.keep(header, request, form, spans)
        return request, form


def _decode_json(
    signature: Signature,
    body: memoryview,
    length: int,
    sink: ResponseSink,
    regions: Regions,
    spans: Spans,
) -> tuple[InferRequest, ResponseForm]:
    """The request and its response's form; `spans` is told what they have in shared memory."""
    document = rapid_json.loads(body[:length])
    reader = _Reader(signature, body, length, regions, spans)
    request = InferRequest(signature.name, {}, sink)
    if "id" in rapid_json.fields(document):
        request.id = rapid_json.parse_member(document, "id", rapid_json.as_string)
    default = read_parameters(document, request)
    reader.read_inputs(document, request)
    return request, ResponseForm(default, read_outputs(document, request, regions, spans))


class _Reader:
    """Reads the inputs of one request, handing out the binary data from front to back."""

    def __init__(
        self,
        signature: Signature,
        body: memoryview,
        position: int,
        regions: Regions,
        spans: Spans,
    ) -> None:
        self._model = signature.name
        self._body = body
        self._position = position
        self._regions = regions
        self._spans = spans

    def read_inputs(self, document: JsonValue, request: InferRequest) -> None:
        inputs = rapid_json.parse_member(document, "inputs", rapid_json.as_array)
        for entry in inputs:
            tensor = self._read_input(entry, request)
            request.inputs[tensor.name] = tensor
        if self._position != len(self._body):
            raise invalid_arg(f"unexpected additional input data for model '{self._model}'")

    def _read_input(self, entry: JsonValue, request: InferRequest) -> Tensor:
        parameters = _check_one_content(entry)
        assert isinstance(entry, dict)
        name = entry.get("name")
        if type(name) is not str:
            name = rapid_json.parse_member(entry, "name", rapid_json.as_string)
        type_name = entry.get("datatype")
        if type(type_name) is not str:
            type_name = rapid_json.parse_member(entry, "datatype", rapid_json.as_string)
        datatype = dtypes.BY_NAME.get(type_name)
        shape = _read_shape(entry)
        if name in request.inputs:
            raise invalid_arg(f"{request.label} input '{name}' already exists in request")
        if "data" not in entry and "binary_data_size" in parameters:
            return Tensor(name, datatype, shape, raw=self._take(name, parameters))
        span = read_span(parameters)
        if span is not None:
            self._spans.inputs[name] = span
            return Tensor(name, datatype, shape, raw=self._regions.view(*span))
        return Tensor(name, datatype, shape, array=_read_data(name, entry, datatype, shape))

    def _take(self, name: str, parameters: dict[str, JsonValue]) -> memoryview:
        size = rapid_json.parse_member(parameters, "binary_data_size", rapid_json.as_uint64)
        end = self._position + size
        missing = end - len(self._body)
        if missing > 0:
            raise invalid_arg(
                f"unexpected size for input '{name}', expecting {missing} additional bytes "
                f"for model '{self._model}'"
            )
        data = self._body[self._position : end]
        self._position = end
        return data


def _check_one_content(entry: JsonValue) -> dict[str, JsonValue]:
    """The input's parameters, once it is clear that it says exactly once where its data is."""
    parameters: JsonValue = {}
    given: list[str] = []
    if isinstance(entry, dict):
        if "data" in entry:
            given.append("data")
        parameters = entry.get("parameters")
        if isinstance(parameters, dict):
            given.extend(field for field in _CONTENT_FIELDS if field in parameters)
    if len(given) != 1:
        what = " no field is set" if not given else " set" + "".join(f" '{f}'" for f in given)
        raise invalid_arg(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in "
            f"'parameters', 'shared_memory_region' in 'parameters'. But{what}"
        )
    return parameters if isinstance(parameters, dict) else {}


def _read_shape(entry: JsonValue) -> Shape:
    sizes = rapid_json.parse_member(entry, "shape", rapid_json.as_array)
    try:
        return tuple([rapid_json.as_uint64(size) for size in sizes])
    except ServerError as error:
        raise rapid_json.prefixed("Unable to parse 'shape'", error) from None


def _read_data(
    name: str, entry: dict[str, JsonValue], datatype: DataType | None, shape: Shape
) -> Array:
    if not shape or 0 in shape:  # no elements: Triton does not look at what is there
        return np.empty(0, np.uint8 if datatype is None else datatype.numpy)
    if datatype is None or datatype in _BINARY_ONLY:
        rapid_json.parse_member(entry, "data", rapid_json.as_array)  # looked at before the type
        if datatype is None:
            raise invalid_arg(f"invalid datatype for input {name}")
        raise invalid_arg(
            f"receiving {datatype.value} data via JSON is not supported. Please use the binary "
            f"data format for input {name}"
        )
    return json_data.read(entry["data"], datatype, shape)
