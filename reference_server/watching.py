"""The command `reference-server page`: serves the live page of another server.

The status comes from the v2 protocol and the metrics port. Only operations that read are used:
metadata, repository index, statistics, configurations.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from reference_server.core.errors import ServerError, unavailable
from reference_server.frontends.event_loop import Background
from reference_server.frontends.http import routes, status_codes
from reference_server.frontends.http.listener import HttpListener
from reference_server.frontends.http.origins import WebOrigins
from reference_server.frontends.http.pages import Page, reply_json
from reference_server.frontends.http.request import Request
from reference_server.gateway.status import RUNTIME_FAMILIES, RuntimeMetrics, by_model
from reference_server.options import WebOptions

_METRICS_PORT = 8002


def main(arguments: Sequence[str]) -> int:
    """Serve the page until SIGINT or SIGTERM. Return 0, or 1 if the port is in use.

    Exits with code 2 if an option is invalid.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    metrics = given.metrics or f"{given.server.rpartition(':')[0]}:{_METRICS_PORT}"
    try:
        origins = WebOrigins(WebOptions(tuple(given.http_allowed_host)), given.address)
        asyncio.run(_serve(RemoteStatus(given.server, metrics), given.address, given.port, origins))
    except ServerError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


async def _serve(status: RemoteStatus, address: str, port: int, origins: WebOrigins) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    handlers = RemotePage(status, Background(loop, most=1), origins)
    listener = HttpListener("page", address, port, handlers.handle)
    await listener.open()
    print(f"http://{address}:{port}/", flush=True)
    await ended.wait()
    listener.stop_accepting()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(listener.drained(), 1)
    listener.close()


class RemotePage:
    """Serves the page and its status. Used on the event loop's thread."""

    def __init__(
        self, status: RemoteStatus, background: Background, origins: WebOrigins | None = None
    ) -> None:
        self._origins = origins or WebOrigins()
        self._status = status
        self._background = background
        self._page = Page("page.html")

    def handle(self, request: Request) -> None:
        """Answer `request`, at once or when the other server has answered."""
        path = routes.path_of(request.url)
        if request.method != "GET":
            request.reply_error(status_codes.NOT_ALLOWED, "Method Not Allowed", as_json=False)
        elif self._origins.refuses(request, for_operators=True):
            return
        elif path == "/":
            self._page.reply(request)
        elif path == "/status.json":
            self._background.run(
                self._status.read,
                lambda status: reply_json(request, status),
                lambda error: self._failed(request, error),
            )
        else:
            request.reply_error(status_codes.NOT_FOUND, "Not Found", as_json=False)

    def _failed(self, request: Request, error: Exception) -> None:
        if not isinstance(error, ServerError):
            # The other server's reply does not have the form of the v2 protocol.
            text = f"unexpected reply of the server: {error!r}; expected the v2 protocol"
            request.reply_error(status_codes.BAD_GATEWAY, text, as_json=True)
            return
        request.reply_error(status_codes.BAD_GATEWAY, error.message, as_json=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reference-server page",
        description="Serve the live page of a server with the v2 protocol, such as tritonserver. "
        "The page only reads from the server.",
    )
    add = parser.add_argument
    # fmt: off
    add("--server", "-s", type=_address, default="localhost:8000", metavar="HOST:PORT",
        help="the server's HTTP port (localhost:8000)")
    add("--metrics", type=_address, metavar="HOST:PORT",
        help=f"the server's metrics port (port {_METRICS_PORT} of the same host)")
    add("--address", default="127.0.0.1", help="address of the page (127.0.0.1)")
    add("--port", type=int, default=8003, help="port of the page (8003)")
    add("--http-allowed-host", action="append", default=[], metavar="NAME",
        help="accept this name of the page in the header Host; may be repeated (local names)")
    # fmt: on
    return parser


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"found '{text}', expected HOST:PORT")
    return text


_PENDING = "nv_inference_pending_request_count"
_MACHINE = {"nv_cpu_memory_used_bytes": "used", "nv_cpu_memory_total_bytes": "total"}
_FAMILIES = "|".join((_PENDING, *_MACHINE, *RUNTIME_FAMILIES))
_LINE = re.compile(rf"^({_FAMILIES})(?:\{{(.*)\}})? (\S+)$", re.MULTILINE)
# A match starts only at the beginning of a name, so that a long label is scanned once.
_LABEL = re.compile(r'(?<!\w)(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_PARTS = {
    "queue": "queue",
    "input": "compute_input",
    "infer": "compute_infer",
    "output": "compute_output",
}
_TIMEOUT_S = 5.0
_MOST_BYTES = 64 << 20
#: The seconds for which a status, and a number of instances, are reused: several pages may be open.
_STATUS_S = 1.0
_CONFIG_S = 30.0


class RemoteStatus:
    """Reads the status of a server; `server` and `metrics` are HOST:PORT. Not thread-safe."""

    def __init__(self, server: str, metrics: str) -> None:
        self._server = server
        self._metrics = metrics
        self._read_at = -_STATUS_S
        self._status: Mapping[str, Any] = {}
        self._instances: dict[tuple[str, str], tuple[float, int | None]] = {}

    def read(self) -> Mapping[str, Any]:
        """Return the status in the form of `StatusGateway.read`. Blocks.

        Raises:
            ServerError: UNAVAILABLE if the server does not answer.
        """
        now = time.monotonic()
        if now - self._read_at >= _STATUS_S:
            self._status = self._read_all(now)
            self._read_at = now
        return self._status

    def _read_all(self, now: float) -> Mapping[str, Any]:
        metadata = self._call("GET", "/v2")
        statistics = self._call("GET", "/v2/models/stats")["model_stats"]
        served = {(each["name"], each["version"]): each for each in statistics}
        samples, note = self._samples()
        runtimes = by_model(each for each in samples if each[0] in RUNTIME_FAMILIES)
        pending = {
            (labels["model"], labels["version"]): value
            for family, labels, value in samples
            if family == _PENDING
        }
        return {
            "title": f"Models of {self._server}",
            "server": f"{metadata['name']} {metadata['version']}{note}",
            "at_ms": now * 1000,
            "http_port": None,
            "log": False,
            "history": [],
            "machine": {_MACHINE[name]: value for name, _, value in samples if name in _MACHINE},
            "models": [
                self._entry(each, served, pending, runtimes, now)
                for each in self._call("POST", "/v2/repository/index")
            ],
        }

    def _entry(
        self,
        entry: Mapping[str, str],
        served: Mapping[tuple[str, str], Mapping[str, Any]],
        pending: Mapping[tuple[str, str], float],
        runtimes: Mapping[tuple[str, str], RuntimeMetrics],
        now: float,
    ) -> Mapping[str, Any]:
        key = entry["name"], entry.get("version", "")
        shown: dict[str, Any] = {
            "name": key[0],
            "version": key[1] or None,
            "state": entry.get("state", "not loaded"),
            "reason": entry.get("reason", ""),
        }
        statistics = served.get(key)
        if statistics is None:
            return shown
        own = runtimes[key].shown() if key in runtimes else _NOTHING
        return shown | {
            "instances": self._instances_of(key, now),
            "pending": pending.get(key),
            "counts": _counts(statistics["inference_stats"]),
            "batches": _batches(statistics["batch_stats"]),
            **own,
        }

    def _instances_of(self, key: tuple[str, str], now: float) -> int | None:
        """Return the number of instances; None if the server does not report it.

        Triton does not decode percent-encoding, so its API has no URL for a name with a blank.
        """
        read_at, count = self._instances.get(key, (-_CONFIG_S, 0))
        if now - read_at >= _CONFIG_S:
            name, version = map(quote, key)
            try:
                config = self._call("GET", f"/v2/models/{name}/versions/{version}/config")
            except ServerError:
                count = None
            else:
                groups = config.get("instance_group", [])
                count = sum(group["count"] * max(1, len(group.get("gpus", []))) for group in groups)
            self._instances[key] = now, count
        return count

    def _samples(self) -> tuple[Sequence[tuple[str, Mapping[str, str], float]], str]:
        """Return the known series, and a note if the metrics cannot be read."""
        try:
            page = _fetch(self._metrics, "GET", "/metrics").decode(errors="replace")
        except OSError:
            return [], f", without metrics: {self._metrics} does not answer"
        return list(_parsed(page)), ""

    def _call(self, method: str, path: str) -> Any:  # noqa: ANN401 - any JSON value
        try:
            return orjson.loads(_fetch(self._server, method, path))
        except (OSError, orjson.JSONDecodeError) as error:
            raise unavailable(f"{method} {path} of {self._server}: {error}") from error


_NOTHING: Mapping[str, Any] = {"memory_bytes": 0, "padding": None, "gears": []}


def _fetch(address: str, method: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        body = reply.read(_MOST_BYTES)
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP reply: {error!r}") from error
    finally:
        connection.close()
    if reply.status != http.client.OK:
        raise OSError(f"{reply.status} {reply.reason} {body[:200].decode(errors='replace')}")
    return body


def _parsed(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for family, labels, value in _LINE.findall(page):
        read = {name: _ESCAPED.sub(_unescaped, text) for name, text in _LABEL.findall(labels)}
        yield family, read, float(value)


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _counts(statistics: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    return {
        "success": statistics["success"]["count"],
        "fail": statistics["fail"]["count"],
        **{name: statistics[part]["ns"] for name, part in _PARTS.items()},
    }


def _batches(statistics: Sequence[Mapping[str, Any]]) -> Sequence[tuple[int, int]]:
    sizes = ((each["batch_size"], each["compute_infer"]["count"]) for each in statistics)
    return sorted(sizes)
