"""HTML pages, each in one file without external resources.

The Content-Security-Policy allows only the page's own style and script, by their digests, so names,
errors and answers of models are never executed. A page can only connect to the port that served it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cached_property
from importlib import resources

import orjson

from reference_server.frontends.http import status_codes
from reference_server.frontends.http.request import Header, Request

_TYPE = b"text/html; charset=utf-8"
_NO_SNIFFING = (b"X-Content-Type-Options", b"nosniff")


class Page:
    """A page in a file of this folder; the file is read at the first request."""

    def __init__(self, file: str) -> None:
        self._file = file

    def reply(self, request: Request) -> None:
        """Reply with the page."""
        body, headers = self._answer
        request.reply(status_codes.OK, [body], headers, content_type=_TYPE)

    @cached_property
    def _answer(self) -> tuple[bytes, list[Header]]:
        text = resources.files(__package__).joinpath(self._file).read_text("utf-8")
        return text.encode(), _headers(text)


def reply_json(request: Request, value: object) -> None:
    """Reply with `value` as JSON, for a page's script."""
    headers = [(b"Cache-Control", b"no-store"), _NO_SNIFFING]
    request.reply(status_codes.OK, [orjson.dumps(value)], headers)


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
