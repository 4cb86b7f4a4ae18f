"""The ids of spans, and their headers as in W3C Trace Context."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

#: Version, trace, span and flags. As in Triton, nothing may follow even in later versions.
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}",
    re.IGNORECASE,
)


class SpanContext(NamedTuple):
    """The ids of a span in lower-case hexadecimal digits, and its `tracestate`."""

    trace_id: str
    span_id: str
    trace_state: str = ""

    def below(self) -> SpanContext:
        """Return the context of a new span of the same trace."""
        return self._replace(span_id=secrets.token_hex(8))

    @property
    def carrier(self) -> str:
        """The headers that propagate this context, as JSON text, with the flag `sampled`."""
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-01"}
        if self.trace_state:
            headers["tracestate"] = self.trace_state
        return json.dumps(headers, separators=(",", ":"))


def new_trace() -> SpanContext:
    """Return the context of the first span of a new trace."""
    return SpanContext(secrets.token_hex(16), secrets.token_hex(8))


def caller_of(fields: Iterable[tuple[bytes, bytes]]) -> SpanContext | None:
    """Return the context of the span in a request's headers; None without a valid header."""
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
