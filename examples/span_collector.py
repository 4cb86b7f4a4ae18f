"""Receive spans like an OpenTelemetry collector, and print one line for each.

    python examples/span_collector.py            listens on localhost:4318, until it is interrupted

The program receives OTLP over HTTP as JSON, as tritonserver and the reference server send it. A
span arrives when it has ended, so inner spans arrive before the spans around them.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Collector(BaseHTTPRequestHandler):
    """Prints the spans of each POST request."""

    def do_POST(self) -> None:
        """Print one batch of spans."""
        batch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in batch["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    print(line(span), flush=True)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Do not log requests."""


def line(span: dict[str, Any]) -> str:
    """Return a line with ids, duration, name and attributes of a span."""
    milliseconds = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6
    parts = [span["traceId"][:8], f"{span.get('parentSpanId', '-'):16} > {span['spanId']}"]
    parts.append(f"{milliseconds:9.3f} ms  {span['name']}")
    for attribute in span.get("attributes", ()):
        (value,) = attribute["value"].values()
        parts.append(f"{attribute['key']}={value}")
    return " ".join(parts)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 4318
    HTTPServer(("localhost", port), Collector).serve_forever()
