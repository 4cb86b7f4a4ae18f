"""The handler of the metrics port: one page, and an empty body on any other path."""

from __future__ import annotations

from reference_server.codecs import prometheus
from reference_server.frontends.http import routes, status_codes
from reference_server.frontends.http.request import Request
from reference_server.gateway.gateway import MetricsGateway

_PAGE = frozenset({"/metrics", "/metrics/"})


class MetricsHandlers:
    """Answers requests by asking the gateway. On the loop's thread."""

    def __init__(self, gateway: MetricsGateway) -> None:
        self._gateway = gateway

    def handle(self, request: Request) -> None:
        """Answer `request`."""
        if request.method != "GET":
            request.reply_error(status_codes.NOT_ALLOWED, "Method Not Allowed", as_json=False)
            return
        parts: list[bytes] = []
        if routes.path_of(request.url) in _PAGE:
            parts.append(prometheus.encode(self._gateway.families()))
        # Triton finds the other paths too, and has nothing to say there.
        request.reply(status_codes.OK, parts, content_type=prometheus.CONTENT_TYPE)
