"""The RPCs of log and trace settings: without changes they read, with changes they read after."""

from __future__ import annotations

from collections.abc import Mapping

from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import proto_settings
from reference_server.frontends.grpc.calls import Method, immediate
from reference_server.gateway.logging import LogSettings
from reference_server.gateway.tracing import TraceSettings


def methods(log: LogSettings, trace: TraceSettings) -> Mapping[str, Method]:
    """The methods, by their names."""

    def log_settings(request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        return proto_settings.log_settings(log.update(proto_settings.log_changes(request)))

    def trace_setting(request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        changes = proto_settings.trace_changes(request)
        return proto_settings.trace_settings(trace.update(changes, request.model_name))

    return {
        "LogSettings": immediate(pb.LogSettingsRequest, log_settings),
        "TraceSetting": immediate(pb.TraceSettingRequest, trace_setting),
    }
