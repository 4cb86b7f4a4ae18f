"""The body of an HTTP inference request to a core request: JSON, JSON with binary data, or raw.

Faults are found, and answered, in the order in which Triton finds them.
"""

from __future__ import annotations

from math import prod

import numpy as np

from reference_server.codecs import json_data, rapid_json
from reference_server.codecs.infer_raw import decode_raw
from reference_server.codecs.input_limit import UNLIMITED, InputLimit
from reference_server.codecs.json_memo import JsonMemo, Span, Spans
from reference_server.codecs.rapid_json_reader import JsonValue
from reference_server.codecs.response_forms import OutputForm, ResponseForm
from reference_server.core import dtypes, request, turns
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.numerals import leading_integer
from reference_server.core.ports import Regions
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.tensor import Array, Shape, Tensor, check_rank

_RAW_FORM = ResponseForm(OutputForm(binary=True))
_MAX_INT64 = 2**63 - 1
#: JSON that is longer is read as a whole: its numbers are most of the work.
_LONGEST_TAKEN_APART = 1 << 16
_CONTENT_FIELDS = ("binary_data_size", "shared_memory_region")


def json_length(header: str | None, body_length: int, *, strictly: bool = False) -> int:
    """How many bytes of the body are JSON; 0 says that the body is a raw tensor.

    `header` is the text of `Inference-Header-Content-Length`, read as C reads numbers: what
    leads it counts; if that is no number it is 0, unless it is read `strictly`. Raises ServerError
    INVALID_ARG if it is not a length within the body.
    """
    if header is None:
        return body_length
    number = leading_integer(header)
    if strictly and number is None:
        raise invalid_arg(f"Unable to parse Inference-Header-Content-Length, got: {header}")
    length = number or 0
    if strictly and not -(2**31) <= length < 2**31:
        raise invalid_arg(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ -2147483648, 2147483647 ], got: {header}"
        )
    if not 0 <= length <= body_length:
        raise invalid_arg(
            f"inference header size should be in range (0, {body_length}), got: {header}"
        )
    return length


class InferRequestDecoder:
    """Reads bodies. Used by one thread, since it remembers headers that it has read.

    `limit` is for JSON, for raw bodies, and for what inputs in JSON become.
    """

    def __init__(self, profile: TritonProfile = V2_51, limit: InputLimit = UNLIMITED) -> None:
        self._profile = profile
        self._limit = limit
        self._memo = JsonMemo()
        # Of what is remembered only the JSON is held against the limit: strings take little more.
        self._remembers = limit.most is None or limit.most >= 2 * _LONGEST_TAKEN_APART

    def decode(
        self,
        signature: Signature,
        body: memoryview,
        length: int,
        sink: ResponseSink,
        regions: Regions,
    ) -> tuple[InferRequest, ResponseForm]:
        """The request in `body`, whose first `length` bytes are JSON, and its response's form.

        Tensors with binary data are views of `body`; `regions` are read. Raises ServerError.
        """
        if not 0 < length <= _LONGEST_TAKEN_APART:
            return self.decode_alone(signature, body, length, sink, regions)
        self._limit.check_json(length)
        # By the header alone: what it says is the same for each model but for its name, which is
        # not in it. Whether a model takes such a request is checked after this.
        taken, known = self._memo.find(bytes(body[:length]))
        if known is not None:
            filled = known.fill(signature.name, taken, body[length:], sink, regions)
            if filled is not None:
                return filled
        spans = Spans()
        request, form = self._decode_json(signature, body, length, sink, regions, spans)
        if known is None and self._remembers:
            self._memo.keep(taken, request, form, spans)
        return request, form

    def decode_alone(
        self,
        signature: Signature,
        body: memoryview,
        length: int,
        sink: ResponseSink,
        regions: Regions,
    ) -> tuple[InferRequest, ResponseForm]:
        """The same, without a look at what was read before. Any thread."""
        if length == 0:
            self._limit.check_raw(len(body))
            return decode_raw(signature, body, sink), _RAW_FORM
        self._limit.check_json(length)
        return self._decode_json(signature, body, length, sink, regions, Spans())

    def _decode_json(
        self,
        signature: Signature,
        body: memoryview,
        length: int,
        sink: ResponseSink,
        regions: Regions,
        spans: Spans,
    ) -> tuple[InferRequest, ResponseForm]:
        """The request and its response's form; `spans` is told what they have in shared memory."""
        if length <= rapid_json.LONG:
            document = rapid_json.loads(body[:length], self._profile)
            return self._read(document, signature, body, length, sink, regions, spans)
        document = None
        with turns.uncollected():
            try:
                document = rapid_json.loads(body[:length], self._profile)
                return self._read(document, signature, body, length, sink, regions, spans)
            finally:
                turns.let_go(document)

    def _read(
        self,
        document: JsonValue,
        signature: Signature,
        body: memoryview,
        length: int,
        sink: ResponseSink,
        regions: Regions,
        spans: Spans,
    ) -> tuple[InferRequest, ResponseForm]:
        reader = _Reader(signature, body, length, regions, spans, self._profile, self._limit)
        request = InferRequest(signature.name, {}, sink)
        if "id" in rapid_json.fields(document):
            request.id = rapid_json.parse_member(document, "id", rapid_json.as_string)
        default = _read_parameters(document, request)
        reader.read_inputs(document, request)
        return request, ResponseForm(default, reader.read_outputs(document, request))


class _Reader:
    """Reads the inputs of one request, handing out the binary data from front to back."""

    def __init__(
        self,
        signature: Signature,
        body: memoryview,
        position: int,
        regions: Regions,
        spans: Spans,
        profile: TritonProfile,
        limit: InputLimit,
    ) -> None:
        self._profile = profile
        self._limit = limit
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
        shape = _read_shape(name, entry)
        if name in request.inputs:
            raise invalid_arg(f"{request.label} input '{name}' already exists in request")
        if "data" not in entry and "binary_data_size" in parameters:
            return Tensor(name, datatype, shape, raw=self._take(name, parameters))
        span = _read_span(parameters)
        if span is not None:
            self._spans.inputs[name] = span
            return Tensor(name, datatype, shape, raw=self._regions.read(*span))
        array = self._read_data(name, entry, datatype, shape)
        return Tensor(name, datatype, shape, array=array)

    def _read_data(
        self, name: str, entry: dict[str, JsonValue], datatype: DataType | None, shape: Shape
    ) -> Array:
        count = prod(shape) if shape else 0
        if shape and self._profile.newer_size_checks:
            count = json_data.element_count(name, datatype, shape)
        if not count:  # no elements: Triton does not look at what is there
            return np.empty(0, np.uint8 if datatype is None else datatype.numpy)
        if datatype is None or datatype in json_data.BINARY_ONLY:
            rapid_json.parse_member(entry, "data", rapid_json.as_array)  # before the type
            if datatype is None:
                raise invalid_arg(f"invalid datatype for input {name}")
            raise invalid_arg(
                f"receiving {datatype.value} data via JSON is not supported. Please use the binary "
                f"data format for input {name}"
            )
        # By its shape, before its elements are looked at: they may be few, and it large.
        self._limit.check_tensor(name, count * datatype.byte_size)
        array = json_data.read(
            entry["data"], datatype, shape, tells_missing=self._profile.newer_request_checks
        )
        if datatype.is_bytes and self._limit.most is not None:
            characters = sum(sum(map(len, some)) for some in turns.slices(array.tolist()))
            self._limit.check_tensor(name, 4 * array.size + characters)
        return array

    def read_outputs(self, document: JsonValue, request: InferRequest) -> dict[str, OutputForm]:
        """The forms by name, of outputs named twice the first; `request` gets their names.

        The spans are told of those that go to shared memory. Raises ServerError.
        """
        forms: dict[str, OutputForm] = {}
        if "outputs" not in rapid_json.fields(document):
            return forms
        for entry in rapid_json.parse_member(document, "outputs", rapid_json.as_array):
            name = rapid_json.parse_member(entry, "name", rapid_json.as_string)
            if self._profile.newer_request_checks and name in forms:
                raise invalid_arg(f"{request.label} output '{name}' already exists in request")
            given = rapid_json.fields(entry).get("parameters")
            form = OutputForm()
            if isinstance(given, dict):
                span = _read_output_span(given)
                if span is None:
                    form = _read_form(given, self._profile.max_classified_elements)
                else:
                    form = OutputForm(buffer=self._regions.output_buffer(*span))
                    self._spans.outputs.append((name, span, name not in forms))
            forms.setdefault(name, form)
        request.requested_outputs = tuple(forms)
        return forms

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


def _read_shape(name: str, entry: JsonValue) -> Shape:
    sizes = rapid_json.parse_member(entry, "shape", rapid_json.as_array)
    check_rank(name, len(sizes))
    try:
        return tuple([rapid_json.as_uint64(size) for size in sizes])
    except ServerError as error:
        raise rapid_json.prefixed("Unable to parse 'shape'", error) from None


# -- parameters: those that Triton knows, and those for the model


def _read_parameters(document: JsonValue, request: InferRequest) -> OutputForm:
    """Read them into `request`; the form of outputs that are not listed. Raises ServerError."""
    default = OutputForm()
    given = rapid_json.fields(document)
    if "parameters" not in given:
        return default
    try:
        parameters = rapid_json.members(given["parameters"])
    except ServerError as error:
        raise rapid_json.prefixed("failed to get request params.", error) from None
    passed: dict[str, Parameter] = {}
    for key, value in parameters.items():
        if key == "sequence_id":
            request.correlation_id = _read_correlation_id(parameters)
        elif key in ("sequence_start", "sequence_end"):
            if rapid_json.parse_member(parameters, key, rapid_json.as_bool):
                request.flags |= SequenceFlag.START if key == "sequence_start" else SequenceFlag.END
        elif key == "priority":
            request.priority = rapid_json.parse_member(parameters, key, rapid_json.as_uint64)
        elif key == "timeout":
            request.timeout_us = rapid_json.parse_member(parameters, key, rapid_json.as_uint64)
        elif key == "binary_data_output":
            default = OutputForm(rapid_json.parse_member(parameters, key, rapid_json.as_bool))
        elif key.startswith("triton_"):
            raise invalid_arg(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should "
                "not be specified."
            )
        else:
            passed[key] = read_parameter(key, value)
    request.parameters = passed
    return default


def read_parameter(name: str, value: JsonValue) -> Parameter:
    """A parameter for the model. Raises ServerError INVALID_ARG for a value that cannot be one."""
    if not isinstance(value, (bool, int, float, str)):
        raise invalid_arg(
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    # What is no int64 Triton reads as a double, though JSON has it as a whole number.
    return float(value) if type(value) is int and value > _MAX_INT64 else value


def _read_correlation_id(parameters: dict[str, JsonValue]) -> int | str:
    value = parameters["sequence_id"]
    if type(value) is int and value >= 0:
        return value
    text = rapid_json.parse_member(parameters, "sequence_id", rapid_json.as_string)
    return request.string_id(text)


# -- outputs: where they go, and in what form


def _read_output_span(parameters: dict[str, JsonValue]) -> Span | None:
    """Where in shared memory an output is to go; None if nowhere there."""
    if "shared_memory_region" not in parameters:
        return None
    if "classification" in parameters:
        raise invalid_arg("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in parameters:
        try:
            binary = rapid_json.as_bool(parameters["binary_data"])
        except ServerError as error:
            raise rapid_json.prefixed("Unable to set 'binary_data'", error) from None
        if binary:
            raise invalid_arg("Output can't set both 'shared_memory_region' and 'binary_data'")
    return _read_span(parameters)


def _read_form(parameters: dict[str, JsonValue], most_classified: int | None) -> OutputForm:
    classes = 0
    if "classification" in parameters:
        try:
            classes = rapid_json.as_uint64(parameters["classification"])
        except ServerError as error:
            raise rapid_json.prefixed("Unable to set 'classification'", error) from None
    _read_span(parameters)  # which can only be mistyped here
    binary = "binary_data" in parameters and rapid_json.parse_member(
        parameters, "binary_data", rapid_json.as_bool
    )
    return OutputForm(binary, classes, most_classified=most_classified)


def _read_span(parameters: dict[str, JsonValue]) -> Span | None:
    """Where in shared memory a tensor is; None if it is elsewhere. Mistyped members are refused."""
    region: str | None = None
    offset = size = 0
    if "shared_memory_region" in parameters:
        region = rapid_json.parse_member(parameters, "shared_memory_region", rapid_json.as_string)
    if "shared_memory_offset" in parameters:
        offset = rapid_json.parse_member(parameters, "shared_memory_offset", rapid_json.as_uint64)
    if "shared_memory_byte_size" in parameters:
        size = rapid_json.parse_member(parameters, "shared_memory_byte_size", rapid_json.as_uint64)
    return None if region is None else (rapid_json.c_string(region), offset, size)
