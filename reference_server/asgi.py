r"""The server's HTTP as an ASGI application, for uvicorn, hypercorn and others.

    REFERENCE_SERVER_OPTIONS="--model-repository=models" \
        uvicorn --factory reference_server.asgi:from_environment --port 8000

The server's options are those of its command line; the ports that they name are not opened, and
connections are the ASGI server's affair. `/metrics` is served at the same port.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Callable, Sequence

from reference_server.command import cli
from reference_server.core.errors import ServerError
from reference_server.frontends.http.asgi import AsgiExchange, Message, Receive, Send
from reference_server.frontends.http.request import Request
from reference_server.observability import logs
from reference_server.options import HttpOptions, ServerOptions
from reference_server.server import Server
from reference_server.shutdown import ExitTimeout

log = logging.getLogger(__name__)

#: Where `from_environment` finds the options, as a shell would split them.
VARIABLE = "REFERENCE_SERVER_OPTIONS"
_METRICS = b"/metrics"


class Application:
    """A server within an ASGI server: loads as the lifespan starts, drains as it ends."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._http = options.http or HttpOptions()
        self._server: Server | None = None
        self._handle: Callable[[Request], None] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(receive, send)
        elif kind == "http":
            assert self._handle is not None, "the ASGI server has no lifespan, or it has failed"
            exchange = AsgiExchange(scope, receive, send)
            await exchange.run(self._handle, self._http.max_input_bytes)
        else:  # websocket
            await send({"type": "websocket.close", "code": 1003})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._start()
        except ServerError as error:
            await send({"type": "lifespan.startup.failed", "message": error.described()})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        assert self._server is not None
        try:
            await self._server.shut_down({})
        except ExitTimeout:  # the log has told
            await send({"type": "lifespan.shutdown.failed", "message": "requests were left"})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = server = Server(self._options)
        await server.load_on(loop)
        handle = server.http_handlers(self._http, loop).handle
        metrics = self._options.metrics
        if metrics is None:
            self._handle = handle
            return
        tell = server.metrics_handlers(metrics).handle

        def choose(request: Request) -> None:
            (tell if request.url.partition(b"?")[0] == _METRICS else handle)(request)

        self._handle = choose


def application(arguments: Sequence[str]) -> Application:
    """The application of these options; their faults end the process, as on the command line."""
    options, warnings = cli.parse(arguments)
    logs.configure(options.log)
    for warning in warnings:
        log.warning("%s", warning)
    return Application(options)


def from_environment() -> Application:
    """The application of the options in REFERENCE_SERVER_OPTIONS."""
    return application(shlex.split(os.environ.get(VARIABLE, "")))
