"""Reads an HTTP inference request: its parsed JSON with binary data, or its raw data.

Faults are reported in Triton's order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from math import prod

import numpy as np

from reference_server.codecs import json_tensor_reader, rapid_json
from reference_server.codecs.bodies import InputLimit
from reference_server.codecs.inference import OutputForm, ResponseForm, Span
from reference_server.codecs.json_exact_reader import JsonValue
from reference_server.core import gil, request
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.ports import Regions
from reference_server.core.profiles import TritonProfile
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.tensor import DATATYPES, Array, DataType, Shape, Tensor, check_rank

_MAX_INT64 = 2**63 - 1
_CONTENT_FIELDS = ("binary_data_size", "shared_memory_region")


@dataclass(slots=True)
class Spans:
    """The parts of shared memory that a JSON request names.

    `outputs` are in the order of the request, each with a flag. The flag is False if the request
    has named the output before; the output is then not written to this part.
    """

    inputs: dict[str, Span] = field(default_factory=dict)
    outputs: list[tuple[str, Span, bool]] = field(default_factory=list)


@dataclass(slots=True)
class RequestReader:
    """Reads one request. The inputs consume the binary data in their order.

    Attributes:
        signature: The model.
        body: The body. Tensors with binary data are views of it.
        position: The number of bytes of JSON at its start, then the start of the unread data.
        sink: The sink of the responses.
        regions: The shared memory that inputs are read from.
        profile: The Triton release to imitate.
        limit: Limits the size of tensors in JSON.
        spans: Receives the parts of shared memory that the request names.
    """

    signature: Signature
    body: memoryview
    position: int
    sink: ResponseSink
    regions: Regions
    profile: TritonProfile
    limit: InputLimit
    spans: Spans = field(default_factory=Spans)

    def read(self, document: JsonValue) -> tuple[InferRequest, ResponseForm]:
        """Return the request in the parsed JSON, and the form of its response.

        Raises ServerError if the request is refused.
        """
        request = InferRequest(self.signature.name, {}, self.sink)
        if "id" in rapid_json.fields(document):
            request.id = rapid_json.parse_member(document, "id", rapid_json.as_string)
        default = _read_parameters(document, request)
        self._read_inputs(document, request)
        return request, ResponseForm(default, self._read_outputs(document, request))

    def _read_inputs(self, document: JsonValue, request: InferRequest) -> None:
        inputs = rapid_json.parse_member(document, "inputs", rapid_json.as_array)
        for entry in inputs:
            tensor = self._read_input(entry, request)
            request.inputs[tensor.name] = tensor
        if self.position != len(self.body):
            raise invalid_arg(f"unexpected additional input data for model '{self.signature.name}'")

    def _read_input(self, entry: JsonValue, request: InferRequest) -> Tensor:
        parameters = _check_one_content(entry)
        assert isinstance(entry, dict)
        name = entry.get("name")
        if type(name) is not str:
            name = rapid_json.parse_member(entry, "name", rapid_json.as_string)
        type_name = entry.get("datatype")
        if type(type_name) is not str:
            type_name = rapid_json.parse_member(entry, "datatype", rapid_json.as_string)
        datatype = DATATYPES.get(type_name)
        shape = _read_shape(name, entry)
        if name in request.inputs:
            raise invalid_arg(f"{request.label} input '{name}' already exists in request")
        if "data" not in entry and "binary_data_size" in parameters:
            return Tensor(name, datatype, shape, raw=self._take(name, parameters))
        span = _read_span(parameters)
        if span is not None:
            self.spans.inputs[name] = span
            return Tensor(name, datatype, shape, raw=self.regions.read(*span))
        array = self._read_data(name, entry, datatype, shape)
        return Tensor(name, datatype, shape, array=array)

    def _read_data(
        self, name: str, entry: dict[str, JsonValue], datatype: DataType | None, shape: Shape
    ) -> Array:
        count = prod(shape) if shape else 0
        if shape and self.profile.newer_size_checks:
            count = json_tensor_reader.element_count(name, datatype, shape)
        if not count:  # no elements: Triton ignores the data
            return np.empty(0, np.uint8 if datatype is None else datatype.numpy)
        if datatype is None or datatype in json_tensor_reader.BINARY_ONLY:
            # Triton reports a wrong type of "data" before the datatype.
            rapid_json.parse_member(entry, "data", rapid_json.as_array)
            if datatype is None:
                raise invalid_arg(f"invalid datatype for input {name}")
            raise invalid_arg(
                f"receiving {datatype.value} data via JSON is not supported. Please use the binary "
                f"data format for input {name}"
            )
        # Checked before the elements are read: a large shape may come with few elements.
        self.limit.check_tensor(name, count * datatype.byte_size)
        array = json_tensor_reader.read_tensor(
            entry["data"], datatype, shape, reports_missing=self.profile.newer_request_checks
        )
        if datatype.is_bytes and self.limit.most is not None:
            characters = sum(sum(map(len, some)) for some in gil.slices(array.tolist()))
            self.limit.check_tensor(name, 4 * array.size + characters)
        return array

    def _read_outputs(self, document: JsonValue, request: InferRequest) -> dict[str, OutputForm]:
        """Return the forms of the outputs by name; the first form of an output wins.

        `request` receives the names, and the spans receive the parts of shared memory. Raises
        ServerError.
        """
        forms: dict[str, OutputForm] = {}
        if "outputs" not in rapid_json.fields(document):
            return forms
        for entry in rapid_json.parse_member(document, "outputs", rapid_json.as_array):
            name = rapid_json.parse_member(entry, "name", rapid_json.as_string)
            if self.profile.newer_request_checks and name in forms:
                raise invalid_arg(f"{request.label} output '{name}' already exists in request")
            given = rapid_json.fields(entry).get("parameters")
            form = OutputForm()
            if isinstance(given, dict):
                span = _read_output_span(given)
                if span is None:
                    form = _read_form(given, self.profile.max_classified_elements)
                else:
                    form = OutputForm(buffer=self.regions.output_buffer(*span))
                    self.spans.outputs.append((name, span, name not in forms))
            forms.setdefault(name, form)
        request.requested_outputs = tuple(forms)
        return forms

    def _take(self, name: str, parameters: dict[str, JsonValue]) -> memoryview:
        size = rapid_json.parse_member(parameters, "binary_data_size", rapid_json.as_uint64)
        end = self.position + size
        missing = end - len(self.body)
        if missing > 0:
            raise invalid_arg(
                f"unexpected size for input '{name}', expecting {missing} additional bytes "
                f"for model '{self.signature.name}'"
            )
        data = self.body[self.position : end]
        self.position = end
        return data


def _check_one_content(entry: JsonValue) -> dict[str, JsonValue]:
    """Return the parameters of an input. Raise ServerError unless it has one source of data."""
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


# -- parameters: for Triton, and for the model


def _read_parameters(document: JsonValue, request: InferRequest) -> OutputForm:
    """Read the parameters into `request`, and return the default form. Raises ServerError."""
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
    """Return a parameter for the model. Raises ServerError INVALID_ARG for a wrong type."""
    if not isinstance(value, (bool, int, float, str)):
        raise invalid_arg(
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    # Triton reads an integer beyond int64 as a double.
    return float(value) if type(value) is int and value > _MAX_INT64 else value


def _read_correlation_id(parameters: dict[str, JsonValue]) -> int | str:
    value = parameters["sequence_id"]
    if type(value) is int and value >= 0:
        return value
    text = rapid_json.parse_member(parameters, "sequence_id", rapid_json.as_string)
    return request.string_id(text)


# -- outputs: their places and forms


def _read_output_span(parameters: dict[str, JsonValue]) -> Span | None:
    """Return the part of shared memory that an output is written to, or None."""
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
    _read_span(parameters)  # only to refuse wrong types
    binary = "binary_data" in parameters and rapid_json.parse_member(
        parameters, "binary_data", rapid_json.as_bool
    )
    return OutputForm(binary, classes, most_classified=most_classified)


def _read_span(parameters: dict[str, JsonValue]) -> Span | None:
    """Return the part of shared memory that a tensor is in, or None. Refuses wrong types."""
    region: str | None = None
    offset = size = 0
    if "shared_memory_region" in parameters:
        region = rapid_json.parse_member(parameters, "shared_memory_region", rapid_json.as_string)
    if "shared_memory_offset" in parameters:
        offset = rapid_json.parse_member(parameters, "shared_memory_offset", rapid_json.as_uint64)
    if "shared_memory_byte_size" in parameters:
        size = rapid_json.parse_member(parameters, "shared_memory_byte_size", rapid_json.as_uint64)
    return None if region is None else (rapid_json.c_string(region), offset, size)


# -- raw data: the content of the model's only input


def decode_raw(signature: Signature, body: memoryview, sink: ResponseSink) -> InferRequest:
    """Return the request with `body` as its input. Raises ServerError INVALID_ARG."""
    label = "[request id: <id_unknown>]"
    count = len(signature.inputs)
    if count != 1:
        raise invalid_arg(
            f"{label} Raw request must only have 1 input (found 1) to be deduced but got "
            f"{count} inputs in '{signature.name}' model configuration"
        )
    (config,) = signature.inputs
    if config.dims.count(-1) > 1:
        raise invalid_arg(
            f"{label} The shape of the raw input '{config.name}' can not be deduced because there "
            "are more than one variable-sized dimension"
        )
    batch = (1,) if signature.batches else ()
    if config.datatype is DataType.BYTES:
        if prod(config.dims) != 1:
            raise invalid_arg(
                f"{label} For BYTE datatype raw input '{config.name}', the model must have input "
                "shape [1]"
            )
        raw = memoryview(struct.pack("<I", len(body)) + bytes(body))
        shape = batch + config.dims
    else:
        raw = body
        fixed = config.datatype.byte_size * abs(prod(config.dims))
        shape = batch + tuple(len(body) // fixed if dim == -1 else dim for dim in config.dims)
        expected = prod(shape) * config.datatype.byte_size
        if expected != len(body):
            raise invalid_arg(
                f"{label} input byte size mismatch for input 'raw_input' for model "
                f"'{signature.name}'. Expected {expected}, got {len(body)}"
            )
    tensor = Tensor(config.name, config.datatype, shape, raw=raw)
    return InferRequest(signature.name, {config.name: tensor}, sink)
