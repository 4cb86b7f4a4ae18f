"""The metrics port: the page that Prometheus reads, and the live page that people read.

The live page is one file without anything from elsewhere. Its style and its script are allowed by
their digests, and nothing else is: what a model's name or error says can never become code.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

import orjson

from reference_server.codecs import prometheus
from reference_server.frontends.http import routes, status_codes
from reference_server.frontends.http.request import Request
from reference_server.gateway.gateway import MetricsGateway
from reference_server.gateway.status import StatusGateway

_METRICS = frozenset({"/metrics", "/metrics/"})
_LIVE_PAGE = "/"
_STATUS = "/status.json"
_TYPE = b"text/html; charset=utf-8"


class MetricsHandlers:
    """Answers requests by asking the gateways. On the loop's thread.

    Without `status` there is no live page.
    """

    def __init__(self, gateway: MetricsGateway, status: StatusGateway | None = None) -> None:
        self._gateway = gateway
        self._status = status
        self._page = b"" if status is None else _live_page()
        self._headers = [] if status is None else _page_headers(self._page.decode())

    def handle(self, request: Request) -> None:
        """Answer `request`."""
        if request.method != "GET":
            request.reply_error(status_codes.NOT_ALLOWED, "Method Not Allowed", as_json=False)
            return
        path = routes.path_of(request.url)
        if path in _METRICS:
            page = prometheus.encode(self._gateway.families())
            request.reply(status_codes.OK, [page], content_type=prometheus.CONTENT_TYPE)
        elif self._status is not None and path == _LIVE_PAGE:
            request.reply(status_codes.OK, [self._page], self._headers, content_type=_TYPE)
        elif self._status is not None and path == _STATUS:
            headers = [(b"Cache-Control", b"no-store"), (b"X-Content-Type-Options", b"nosniff")]
            request.reply(status_codes.OK, [orjson.dumps(self._status.read())], headers)
        else:
            # Triton finds the other paths too, and has nothing to say there.
            request.reply(status_codes.OK, [], content_type=prometheus.CONTENT_TYPE)


def _live_page() -> bytes:
    return resources.files("reference_server.frontends.http").joinpath("page.html").read_bytes()


def _page_headers(page: str) -> list[tuple[bytes, bytes]]:
    policy = (
        "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; style-src {_digest(page, 'style')}; "
        f"script-src {_digest(page, 'script')}"
    )
    return [
        (b"Content-Security-Policy", policy.encode()),
        (b"X-Content-Type-Options", b"nosniff"),
        (b"Referrer-Policy", b"no-referrer"),
        (b"Cache-Control", b"no-cache"),
    ]


def _digest(page: str, tag: str) -> str:
    """What allows the one element of that kind on the page."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
