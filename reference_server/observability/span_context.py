"""Where a span stands among others, as W3C's Trace Context says it in headers."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

#: Version, trace, span and flags. As in Triton, nothing may follow in later versions either.
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}",
    re.IGNORECASE,
)


class SpanContext(NamedTuple):
    """A span's ids in lower-case hexadecimal digits, and the `tracestate` that goes with them."""

    trace_id: str
    span_id: str
    trace_state: str = ""

    def below(self) -> SpanContext:
        """The context of a new span of the same trace."""
        return self._replace(span_id=secrets.token_hex(8))

    @property
    def carrier(self) -> str:
        """The headers that tell it to others, as JSON text. Whatever is recorded is sampled."""
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-01"}
        if self.trace_state:
            headers["tracestate"] = self.trace_state
        return json.dumps(headers, separators=(",", ":"))


def new_trace() -> SpanContext:
    """The context of the first span of a trace."""
    return SpanContext(secrets.token_hex(16), secrets.token_hex(8))


def caller_of(fields: Iterable[tuple[bytes, bytes]]) -> SpanContext | None:
    """The span that sent a request, by its headers; None if they name none."""
    parent, state = b"", ""
    for name, value in fields:
        lower = name.lower()
        if lower == b"traceparent":
            parent = value.strip()
        elif lower == b"tracestate":
            state = value.decode("latin-1").strip()
    found = _TRACEPARENT.fullmatch(parent)
    if found is None:
        return None
    trace_id, span_id = (digits.decode().lower() for digits in found.groups())
    return SpanContext(trace_id, span_id, state)
