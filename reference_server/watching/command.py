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
    """Serve the page until SIGINT or SIGTERM. Return 0, or 1 if the port is in use.

    Exits with code 2 if an option is invalid.
    """
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
    """Serves the page and its status. Used on the event loop's thread."""

    def __init__(self, status: RemoteStatus, background: Background) -> None:
        self._status = status
        self._background = background
        self._page = Page("page.html")

    def handle(self, request: Request) -> None:
        """Answer `request`, at once or when the other server has answered."""
        path = routes.path_of(request.url)
        if request.method != "GET":
            request.reply_error(status_codes.NOT_ALLOWED, "Method Not Allowed", as_json=False)
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
    parser.add_argument(
        *("--server", "-s"),
        type=_address,
        default="localhost:8000",
        metavar="HOST:PORT",
        help="the server's HTTP port (localhost:8000)",
    )
    parser.add_argument(
        "--metrics",
        type=_address,
        metavar="HOST:PORT",
        help=f"the server's metrics port (port {_METRICS_PORT} of the same host)",
    )
    parser.add_argument("--address", default="127.0.0.1", help="address of the page (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8003, help="port of the page (8003)")
    return parser


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"found '{text}', expected HOST:PORT")
    return text
