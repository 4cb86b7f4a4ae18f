"""Settings of the log and of tracing as messages of Triton's gRPC service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from tritonclient.grpc.service_pb2 import (
    LogSettingsRequest,
    LogSettingsResponse,
    TraceSettingRequest,
    TraceSettingResponse,
)

LogValue = bool | int | str
#: The values of one trace setting; None clears it.
TraceChange = Sequence[str] | None

#: The settings in the order in which Triton looks for them; a map has none of its own.
_LOG_SETTINGS = (
    *("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"),
)
_TRACE_SETTINGS = ("trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency")


def log_changes(request: LogSettingsRequest) -> Iterator[tuple[str, LogValue]]:
    """The changes that a request asks for; a value that is not set comes as None."""
    for name in _LOG_SETTINGS:
        if name in request.settings:
            value = request.settings[name]
            kind = value.WhichOneof("parameter_choice")
            # None is of no setting's type, and refused as such.
            yield name, cast(LogValue, kind and getattr(value, kind))


def log_settings(settings: Mapping[str, LogValue]) -> LogSettingsResponse:
    """All settings."""
    response = LogSettingsResponse()
    for name, value in settings.items():
        written = response.settings[name]
        if isinstance(value, bool):
            written.bool_param = value
        elif isinstance(value, int):
            written.uint32_param = value
        else:
            written.string_param = value
    return response


def trace_changes(request: TraceSettingRequest) -> Iterator[tuple[str, TraceChange]]:
    """The changes that a request asks for; no values clear a setting."""
    for name in _TRACE_SETTINGS:
        if name in request.settings:
            yield name, list(request.settings[name].value) or None


def trace_settings(settings: Mapping[str, Sequence[str]]) -> TraceSettingResponse:
    """All settings."""
    response = TraceSettingResponse()
    for name, values in settings.items():
        response.settings[name].value.extend(values)
    return response
