"""The parameters of an HTTP inference request: those that Triton knows, and those for the model."""

from __future__ import annotations

from reference_server.codecs import rapid_json
from reference_server.codecs.infer_options import OutputForm
from reference_server.codecs.rapid_json_reader import JsonValue
from reference_server.core import request
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.request import InferRequest, Parameter, SequenceFlag

_MAX_INT64 = 2**63 - 1


def read_parameters(document: JsonValue, request: InferRequest) -> OutputForm:
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
        elif isinstance(value, (bool, int, float, str)):
            passed[key] = float(value) if type(value) is int and value > _MAX_INT64 else value
        else:
            raise invalid_arg(
                f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or "
                "'string'."
            )
    request.parameters = passed
    return default


def _read_correlation_id(parameters: dict[str, JsonValue]) -> int | str:
    value = parameters["sequence_id"]
    if type(value) is int and value >= 0:
        return value
    text = rapid_json.parse_member(parameters, "sequence_id", rapid_json.as_string)
    return request.string_id(text)
