"""An HTTP server that sends the same response to all requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from triton_replay.addresses import Address

#: Metadata of a model and the answer to an inference in one, so that any question is answered.
ANSWER = (
    b'{"name": "m", "versions": ["1"], "platform": "p", "extensions": [], "model_name": "m",'
    b' "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],'
    b' "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]}]}'
)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answers: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.left = answers
        self.open: list[socket.socket] = []

    def die(self) -> None:
        """Close the port and all connections, like the end of a process."""
        self.socket.close()
        for one in self.open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.open.append(self.connection)

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.left == 0:
            self.close_connection = True
            self.server.die()
            return
        if self.server.left is not None:
            self.server.left -= 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Do not log."""


@contextlib.contextmanager
def serving(answers: int | None = None, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Run a server that exits instead of sending a response after the first `answers`."""
    with _Server(answers) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield "127.0.0.1:{}".format(*server.server_address[1:])
        finally:
            server.shutdown()
            thread.join()


@contextlib.asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[tuple[asyncio.Server, Address]]:
    """Call `serve` for each connection. Yield the server and its address."""
    tasks: list[asyncio.Task[None]] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield server, Address(*server.sockets[0].getsockname())
    finally:
        server.close()
        await asyncio.gather(*tasks)
