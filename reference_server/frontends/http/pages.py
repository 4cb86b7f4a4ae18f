"""The metrics port, and HTML pages, each in one file without external resources.

The Content-Security-Policy allows only the page's own style and script, by their digests, so names,
errors and answers of models are never executed. A page can only connect to the port that served it.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import resources

import orjson

from reference_server.core.errors import Code
from reference_server.core.telemetry import Distribution, Family, Labels, Quantiles
from reference_server.frontends.event_loop import Background, SharedWork
from reference_server.frontends.http import routes, status_codes
from reference_server.frontends.http.origins import WebOrigins
from reference_server.frontends.http.request import Header, Request
from reference_server.gateway.gateway import MetricsGateway
from reference_server.gateway.status import StatusGateway

log = logging.getLogger(__name__)

_TYPE = b"text/html; charset=utf-8"
_NO_SNIFFING = (b"X-Content-Type-Options", b"nosniff")


class Page:
    """A page in a file of this folder; the file is read at the first request.

    Args:
        file: the name of the file.
        values: replacement texts, by the word of the file that they replace.
    """

    def __init__(self, file: str, values: Mapping[str, str] | None = None) -> None:
        self._file = file
        self._values = values or {}

    def reply(self, request: Request) -> None:
        """Reply with the page."""
        body, headers = self._answer
        request.reply(status_codes.OK, [body], headers, content_type=_TYPE)

    @cached_property
    def _answer(self) -> tuple[bytes, list[Header]]:
        text = resources.files(__package__).joinpath(self._file).read_text("utf-8")
        for word, value in self._values.items():
            text = text.replace(word, value)
        return text.encode(), _headers(text)


def reply_json(request: Request, value: object) -> None:
    """Reply with `value` as JSON, for a page's script."""
    _reply_encoded(request, orjson.dumps(value))


def _reply_encoded(request: Request, body: bytes) -> None:
    request.reply(status_codes.OK, [body], [(b"Cache-Control", b"no-store"), _NO_SNIFFING])


def _headers(page: str) -> list[Header]:
    policy = (
        "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; style-src {_digest(page, 'style')}; "
        f"script-src {_digest(page, 'script')}"
    )
    return [
        (b"Content-Security-Policy", policy.encode()),
        _NO_SNIFFING,
        (b"Referrer-Policy", b"no-referrer"),
        (b"Cache-Control", b"no-cache"),
    ]


def _digest(page: str, tag: str) -> str:
    """Return the policy's source expression for the page's only element `tag`."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


# -- the metrics port: the page for Prometheus, and the live page

_METRICS = frozenset({"/metrics", "/metrics/"})
_LIVE_PAGE = "/"
_STATUS = "/status.json"
_LOG = "/log.json"
_AFTER = re.compile(rb"\?after=(\d{1,15})$")


class MetricsHandlers:
    """The handlers of the metrics port. Used on the loop's thread.

    Metrics and status of many models take long, so `background` collects them, once for all
    requests that wait. Without `status` there is no live page. `origins` are the rules for requests
    of web pages.
    """

    def __init__(
        self,
        gateway: MetricsGateway,
        background: Background,
        status: StatusGateway | None = None,
        origins: WebOrigins | None = None,
    ) -> None:
        self._origins = origins or WebOrigins()
        self._status = status
        self._page = None if status is None else Page("page.html")
        self._metrics = SharedWork(background, lambda: encode_metrics(gateway.families()))
        if status is not None:
            self._shown = SharedWork(background, lambda: orjson.dumps(status.read()))

    def handle(self, request: Request) -> None:
        """Reply to `request`."""
        if request.method != "GET":
            request.reply_error(status_codes.NOT_ALLOWED, "Method Not Allowed", as_json=False)
            return
        path = routes.path_of(request.url)
        if self._origins.refuses(request, for_operators=path in (_LIVE_PAGE, _STATUS, _LOG)):
            return
        if path in _METRICS:
            self._metrics.run(
                lambda page: request.reply(status_codes.OK, [page], content_type=METRICS_TYPE),
                lambda error: _fail(request, error),
            )
        elif self._page is not None and path == _LIVE_PAGE:
            self._page.reply(request)
        elif self._status is not None and path == _STATUS:
            self._shown.run(
                lambda status: _reply_encoded(request, status), lambda error: _fail(request, error)
            )
        elif self._status is not None and path == _LOG:
            after = _AFTER.search(request.url)
            reply_json(request, self._status.log_after(int(after[1]) if after else 0))
        else:
            # Triton replies with an empty page to other paths.
            request.reply(status_codes.OK, [], content_type=METRICS_TYPE)


def _fail(request: Request, error: Exception) -> None:
    log.error("%s", request.url, exc_info=error)
    text = f"{type(error).__name__}: {error}"
    request.reply_error(status_codes.STATUS[Code.INTERNAL], text, as_json=True)


# -- metrics in Prometheus' text format, as Triton's library writes them

# The official client library for Python writes another dialect (it renames counters to `*_total`,
# adds series of creation times, and prints integers as `2.0`), so it could not be used here.

METRICS_TYPE = b"text/plain; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def encode_metrics(families: Iterable[Family]) -> bytes:
    """Return the page; families without series are left out."""
    lines = (line for family in families if family.samples for line in _lines(family))
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(family: Family) -> Iterator[str]:
    head = family.head
    if head.description:
        # Triton does not escape the line feed, which makes the page invalid.
        description = head.description.replace("\n", r"\n")
        yield f"# HELP {head.name} {description}"
    yield f"# TYPE {head.name} {head.kind.value}"
    for sample in family.samples:
        if isinstance(sample.value, Distribution):
            yield from _distribution(head.name, sample.labels, sample.value)
        elif isinstance(sample.value, Quantiles):
            yield from _quantiles(head.name, sample.labels, sample.value)
        else:
            yield f"{head.name}{_labels(sample.labels)} {_number(sample.value)}"


def _distribution(name: str, labels: Labels, value: Distribution) -> Iterator[str]:
    shown = _labels(labels)
    yield f"{name}_count{shown} {value.count}"
    yield f"{name}_sum{shown} {_number(value.sum)}"
    for bound, count in (*value.buckets, (math.inf, value.count)):
        yield f"{name}_bucket{_labels((*labels, ('le', _number(bound))))} {count}"


def _quantiles(name: str, labels: Labels, value: Quantiles) -> Iterator[str]:
    shown = _labels(labels)
    yield f"{name}_count{shown} {value.count}"
    yield f"{name}_sum{shown} {_number(value.sum)}"
    for quantile, found in value.values:
        labelled = _labels((*labels, ("quantile", _number(quantile))))
        yield f"{name}{labelled} {_number(found)}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{pairs}}}"


def _number(value: float) -> str:
    """Format with 16 digits, although some doubles need 17, and without trailing zeros."""
    if math.isfinite(value):
        return f"{float(value):.16g}"
    return "Nan" if math.isnan(value) else f"{value:+}".replace("inf", "Inf")
