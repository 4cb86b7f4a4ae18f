"""The command `reference-server page`: serves the live page of another server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence

from reference_server.core.errors import ServerError
from reference_server.frontends.event_loop import Background
from reference_server.frontends.http import routes, status_codes
from reference_server.frontends.http.listener import HttpListener
from reference_server.frontends.http.pages import Page, reply_json
from reference_server.frontends.http.request import Request
from reference_server.watching.remote_status import RemoteStatus

_METRICS_PORT = 8002


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM; 1 if the port is taken, 2 for options that cannot be."""
    parser = _parser()
    given = parser.parse_args(arguments)
    metrics = given.metrics or f"{given.server.rpartition(':')[0]}:{_METRICS_PORT}"
    try:
        asyncio.run(_serve(RemoteStatus(given.server, metrics), given.address, given.port))
    except ServerError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


async def _serve(status: RemoteStatus, address: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    handlers = RemotePage(status, Background(loop, most=1))
    listener = HttpListener("page", address, port, handlers.handle)
    await listener.open()
    print(f"http://{address}:{port}/", flush=True)
    await ended.wait()
    listener.stop_accepting()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(listener.drained(), 1)
    listener.close()


class RemotePage:
    """Answers requests for the page and its status. On the loop's thread."""

    def __init__(self, status: RemoteStatus, background: Background) -> None:
        self._status = status
        self._background = background
        self._page = Page("page.html")

    def handle(self, request: Request) -> None:
        """Answer `request`, now or when the other server has answered."""
        path = routes.path_of(request.url)
        if request.method != "GET":
            request.reply_error(status_codes.NOT_ALLOWED, "Method Not Allowed", as_json=False)
        elif path == "/":
            self._page.reply(request)
        elif path == "/status.json":
            self._background.run(
                self._status.read,
                lambda told: reply_json(request, told),
                lambda error: self._failed(request, error),
            )
        else:
            request.reply_error(status_codes.NOT_FOUND, "Not Found", as_json=False)

    def _failed(self, request: Request, error: Exception) -> None:
        if not isinstance(error, ServerError):
            # What it answers is no v2 protocol.
            text = f"what the server answers is not understood: {error!r}"
            request.reply_error(status_codes.BAD_GATEWAY, text, as_json=True)
            return
        request.reply_error(status_codes.BAD_GATEWAY, error.message, as_json=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reference-server page",
        description="Show what a server of the v2 protocol does, such as tritonserver, as a page "
        "that is kept up to date. Nothing on it is changed or executed.",
    )
    parser.add_argument(
        *("--server", "-s"),
        type=_address,
        default="localhost:8000",
        metavar="HOST:PORT",
        help="its HTTP port (localhost:8000)",
    )
    parser.add_argument(
        "--metrics",
        type=_address,
        metavar="HOST:PORT",
        help=f"its metrics port (port {_METRICS_PORT} of the same host)",
    )
    parser.add_argument("--address", default="127.0.0.1", help="where the page listens (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8003, help="where the page listens (8003)")
    return parser


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not HOST:PORT")
    return text
