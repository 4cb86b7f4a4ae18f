"""The endpoints of log and trace settings. Everything here runs on the loop's thread."""

from __future__ import annotations

from collections.abc import Mapping

from reference_server.codecs import settings_json
from reference_server.frontends.http import errors
from reference_server.frontends.http.handlers import Handler
from reference_server.frontends.http.request import Request
from reference_server.frontends.http.routes import Operation, Route
from reference_server.gateway.logging import LogSettings
from reference_server.gateway.tracing import TraceSettings


def handlers(log: LogSettings, trace: TraceSettings) -> Mapping[Operation, Handler]:
    """Who answers the operations on settings: GET reads, POST changes and reads."""

    def log_settings(request: Request, route: Route) -> None:
        if request.method == "GET":
            settings = log.read()
        else:
            settings = log.update(settings_json.read_log_settings(request.body))
        request.reply(errors.OK, [settings_json.encode_log_settings(settings)])

    def trace_settings(request: Request, route: Route) -> None:
        if request.method == "GET":
            settings = trace.read(route.model)
        else:
            changes = settings_json.read_trace_settings(request.body)
            settings = trace.update(changes, route.model)
        request.reply(errors.OK, [settings_json.encode_trace_settings(settings)])

    return {Operation.LOG_SETTINGS: log_settings, Operation.TRACE_SETTINGS: trace_settings}
