"""The `outputs` of an HTTP inference request: which are wanted, and in what form."""

from __future__ import annotations

from reference_server.codecs import rapid_json
from reference_server.codecs.infer_options import OutputForm
from reference_server.codecs.rapid_json_reader import JsonValue
from reference_server.codecs.spans import Span, Spans, read_span
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.ports import Regions
from reference_server.core.request import InferRequest


def read_outputs(
    document: JsonValue, request: InferRequest, regions: Regions, spans: Spans
) -> dict[str, OutputForm]:
    """The forms by name, of outputs named twice the first; `request` gets their names.

    `spans` is told of those that go to shared memory. Raises ServerError.
    """
    forms: dict[str, OutputForm] = {}
    if "outputs" not in rapid_json.fields(document):
        return forms
    for entry in rapid_json.parse_member(document, "outputs", rapid_json.as_array):
        name = rapid_json.parse_member(entry, "name", rapid_json.as_string)
        given = rapid_json.fields(entry).get("parameters")
        form = OutputForm()
        if isinstance(given, dict):
            span = _read_place(given)
            if span is None:
                form = _read_form(given)
            else:
                form = OutputForm(buffer=regions.output_buffer(*span))
                spans.places.append((name, span, name not in forms))
        forms.setdefault(name, form)
    request.requested_outputs = tuple(forms)
    return forms


def _read_place(parameters: dict[str, JsonValue]) -> Span | None:
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
    return read_span(parameters)


def _read_form(parameters: dict[str, JsonValue]) -> OutputForm:
    classes = 0
    if "classification" in parameters:
        try:
            classes = rapid_json.as_uint64(parameters["classification"])
        except ServerError as error:
            raise rapid_json.prefixed("Unable to set 'classification'", error) from None
    read_span(parameters)  # which can only be mistyped here
    binary = "binary_data" in parameters and rapid_json.parse_member(
        parameters, "binary_data", rapid_json.as_bool
    )
    return OutputForm(binary, classes)
