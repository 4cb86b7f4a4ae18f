"""A collector for spans on loopback, which receives OTLP over HTTP as JSON."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_WAIT_SECONDS = 30


@dataclass
class Span:
    """One span with its attributes, and the names of its events in order."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    trace_state: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[str]
    event_ns: list[int] = field(compare=False)


class Collector:
    """The received spans. `status` is the HTTP status of the responses."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.refused = threading.Semaphore(0)  # released for each refused body
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.scopes: set[str] = set()
        self.requests: list[tuple[str, str]] = []  # paths and content types
        self._changed = threading.Condition()

    def take(self, path: str, content_type: str, body: bytes) -> None:
        with self._changed:
            self.requests.append((path, content_type))
            for resource in json.loads(body)["resourceSpans"]:
                self.resources.append(_attributes(resource["resource"]))
                for scope in resource["scopeSpans"]:
                    self.scopes.add(scope["scope"]["name"])
                    self.spans += map(_span, scope["spans"])
            self._changed.notify_all()

    def wait(self, done: Callable[[list[Span]], bool]) -> list[Span]:
        """Wait until `done` accepts the received spans, and return these."""
        with self._changed:
            assert self._changed.wait_for(lambda: done(self.spans), _WAIT_SECONDS), self.spans
            return list(self.spans)

    def trace(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace after its last span, that of the whole request."""

        def of_trace(spans: list[Span]) -> list[Span]:
            return [span for span in spans if span.trace_id == trace_id]

        whole = self.wait(lambda spans: "InferRequest" in [span.name for span in of_trace(spans)])
        return of_trace(whole)


def _span(span: dict[str, Any]) -> Span:
    events = span.get("events", [])
    return Span(
        span["name"],
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId", ""),
        span["kind"],
        span.get("traceState", ""),
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
        _attributes(span),
        [event["name"] for event in events],
        [int(event["timeUnixNano"]) for event in events],
    )


def _attributes(of: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for attribute in of.get("attributes", ()):
        ((kind, value),) = attribute["value"].items()
        found[attribute["key"]] = int(value) if kind == "intValue" else value
    return found


@contextlib.contextmanager
def start_collector() -> Iterator[Collector]:
    """Run a collector on a free port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if collector.status == 200:
                collector.take(self.path, self.headers["Content-Type"], body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            if collector.status != 200:
                collector.refused.release()

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
