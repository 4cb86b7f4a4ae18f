"""The metrics port: the page for Prometheus, and the live page."""

from __future__ import annotations

import re

from reference_server.codecs import prometheus
from reference_server.frontends.http import routes, status_codes
from reference_server.frontends.http.pages import Page, reply_json
from reference_server.frontends.http.request import Request
from reference_server.gateway.gateway import MetricsGateway
from reference_server.gateway.status import StatusGateway

_METRICS = frozenset({"/metrics", "/metrics/"})
_LIVE_PAGE = "/"
_STATUS = "/status.json"
_LOG = "/log.json"
_AFTER = re.compile(rb"\?after=(\d{1,15})$")


class MetricsHandlers:
    """The handlers of the metrics port. Used on the loop's thread.

    Without `status` there is no live page.
    """

    def __init__(self, gateway: MetricsGateway, status: StatusGateway | None = None) -> None:
        self._gateway = gateway
        self._status = status
        self._page = None if status is None else Page("page.html")

    def handle(self, request: Request) -> None:
        """Reply to `request`."""
        if request.method != "GET":
            request.reply_error(status_codes.NOT_ALLOWED, "Method Not Allowed", as_json=False)
            return
        path = routes.path_of(request.url)
        if path in _METRICS:
            page = prometheus.encode(self._gateway.families())
            request.reply(status_codes.OK, [page], content_type=prometheus.CONTENT_TYPE)
        elif self._page is not None and path == _LIVE_PAGE:
            self._page.reply(request)
        elif self._status is not None and path == _STATUS:
            reply_json(request, self._status.read())
        elif self._status is not None and path == _LOG:
            after = _AFTER.search(request.url)
            reply_json(request, self._status.log_after(int(after[1]) if after else 0))
        else:
            # Triton replies with an empty page to other paths.
            request.reply(status_codes.OK, [], content_type=prometheus.CONTENT_TYPE)
