r"""The HTTP frontend as an ASGI application, for uvicorn, hypercorn and other ASGI servers.

    REFERENCE_SERVER_OPTIONS="--model-repository=models" \
        uvicorn --factory reference_server.asgi:from_environment --port 8000

The options are those of the command line. The server does not open the ports that they name: the
ASGI server owns the connections. `/metrics` is served at the same port.
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

#: The environment variable with the options for `from_environment`, quoted as in a shell.
VARIABLE = "REFERENCE_SERVER_OPTIONS"
_METRICS = b"/metrics"


class Application:
    """An ASGI 3 application. The lifespan's start loads the models; its end shuts the server down.

    Use one instance per process and event loop. Requests without a started lifespan fail.

    Args:
        options: the server's options; `application` parses them from a command line.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._http = options.http or HttpOptions()
        self._server: Server | None = None
        self._handle: Callable[[Request], None] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan. Websocket connections are rejected.

        Args:
            scope: the connection's scope; its type is "lifespan", "http" or "websocket".
            receive: returns the next message of the ASGI server.
            send: sends a message to the ASGI server.
        """
        kind = scope["type"]
        if kind == "lifespan":
            await self._run_lifespan(receive, send)
        elif kind == "http":
            assert self._handle is not None, "the ASGI server has no lifespan, or it has failed"
            exchange = AsgiExchange(scope, receive, send)
            assert self._server is not None
            await exchange.run(self._handle, self._server.body_limits(self._http))
        else:  # websocket
            await send({"type": "websocket.close", "code": 1003})

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
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
        except ExitTimeout:  # already logged
            await send(
                {"type": "lifespan.shutdown.failed", "message": "exit timeout: requests in flight"}
            )
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
        handle_metrics = server.metrics_handlers(metrics).handle

        def choose(request: Request) -> None:
            is_metrics = request.url.partition(b"?")[0] == _METRICS
            (handle_metrics if is_metrics else handle)(request)

        self._handle = choose


def application(arguments: Sequence[str]) -> Application:
    """Return an application with these options, and configure the log.

    Args:
        arguments: options of the command line `reference-server`.

    Returns:
        The ASGI application.

    Raises:
        SystemExit: an option is invalid.
        ServerError: the response cache cannot be created.
    """
    options, warnings = cli.parse(arguments)
    logs.configure(options.log, splits=options.profile.splits_log)
    for warning in warnings:
        log.warning("%s", warning)
    return Application(options)


def from_environment() -> Application:
    """Return an application with the options in REFERENCE_SERVER_OPTIONS.

    Raises:
        SystemExit: an option is invalid.
        ServerError: the response cache cannot be created.
    """
    return application(shlex.split(os.environ.get(VARIABLE, "")))
