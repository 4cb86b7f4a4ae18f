"""Calls that the ingress passes to a replica: gRPC with one message, and HTTP as ASGI messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.serve._private import replica

from reference_server.codecs.proto_fields import Data
from reference_server.core.backlog import Backlog
from reference_server.core.errors import ServerError
from reference_server.frontends.grpc.calls import STATUS, Method, Status
from reference_server.frontends.http.asgi import AsgiExchange, Body, Message
from reference_server.frontends.http.request import Request

#: The metadata of a call.
Fields = Sequence[tuple[bytes, bytes]]


class End(NamedTuple):
    """The status with which a call ends."""

    status: int = Status.OK
    text: str = ""

    @property
    def is_ok(self) -> bool:
        """True if the status is OK."""
        return self.status == Status.OK


class Calls:
    """Answers calls with `methods`, by full name. Used on the event loop's thread."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods

    async def whole(self, method: str, fields: Fields, message: bytes) -> tuple[bytes, End]:
        """Return the single response message, and the status."""
        answer, end = b"", End()
        async for each in self.stream(method, fields, message):
            if isinstance(each, End):
                end = each
            else:
                answer = each
        return answer, end

    async def stream(
        self, method: str, fields: Fields, message: bytes
    ) -> AsyncIterator[bytes | End]:
        """Yield the response messages, then the status. Closing the generator cancels the call."""
        call = _Call(fields)
        handler = self._methods[method].start(call)
        try:
            if not call.has_ended:
                handler.receive(message)
                handler.half_close()
            while True:
                item = await call.output.get()
                yield item
                if isinstance(item, End):
                    return
                call.taken(item)
        finally:
            if not call.has_ended:
                call.close()
                handler.cancel()


class _Call:
    """A call as its method sees it; its messages are queued in `output`."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._metadata = {name.decode(): value.decode("latin-1") for name, value in fields}
        self._unsent = 0  # bytes
        self._backlog: Backlog | None = None
        self.output: asyncio.Queue[bytes | End] = asyncio.Queue()
        self.has_ended = False

    def taken(self, message: bytes) -> None:
        """Record that a message was taken from the queue."""
        self._unsent -= len(message)
        self._update_backlog()

    def metadata(self, name: str) -> str | None:
        return self._metadata.get(name)

    def fields(self) -> Fields:
        return self._fields

    def send(self, *message: Data) -> None:
        if not self.has_ended:
            data = b"".join(message)
            self._unsent += len(data)
            self.output.put_nowait(data)
            self._update_backlog()

    def watch(self, backlog: Backlog) -> None:
        self._backlog = backlog

    def _update_backlog(self) -> None:
        if self._backlog is not None and not self.has_ended:
            self._backlog.keep(self._unsent)

    def hold(self, *, held: bool) -> None:
        """Do nothing: the call has only one message."""

    def end(self, error: ServerError | None = None) -> None:
        if not self.has_ended:
            self.close()
            self.output.put_nowait(
                End() if error is None else End(STATUS[error.code], error.message)
            )

    def close(self) -> None:
        """Ignore further output of the method."""
        self.has_ended = True
        if self._backlog is not None:
            self._backlog.close()


# -- HTTP requests with complete bodies, and replies as ASGI messages

#: The fields of the ASGI scope that are passed to a replica.
_REQUEST_FIELDS = ("method", "path", "raw_path", "query_string", "headers")


class Exchanges:
    """Answers requests with `handle`. Used on the event loop's thread."""

    def __init__(self, handle: Callable[[Request], None]) -> None:
        self._handle = handle

    async def whole(self, scope: Message, body: Body) -> list[Message]:
        """Return the complete reply."""
        messages: list[Message] = []

        async def send(message: Message) -> None:
            messages.append(message)

        await AsgiExchange(scope, _never_disconnects, send).answer(body, self._handle)
        return messages

    async def stream(self, scope: Message, body: Body) -> AsyncIterator[Message]:
        """Yield the reply as it is written. Closing the generator cancels the request."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue(1)
        exchange = AsgiExchange(scope, _never_disconnects, messages.put)

        async def run() -> None:
            await exchange.answer(body, self._handle)
            await messages.put(None)

        running = asyncio.ensure_future(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def _never_disconnects() -> Message:
    """Wait for ever: a disconnect cancels the caller instead."""
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


def request_of(scope: Message) -> Message:
    """Return the fields of a request that are sent to a replica."""
    return {name: scope[name] for name in _REQUEST_FIELDS}


# -- the address that a replica's process listens on

_ANYWHERE = "[::]:0"
_OPEN = "add_port_to_grpc_server"


def at_the_node_only() -> None:
    """Let Serve open the replica's own port on the node's address only.

    Serve opens this port, for calls between deployments, on all networks, and has no setting for
    it. Call this function before the replica has started. A test checks the open ports of a
    cluster.
    """
    serves: Any = replica
    open_port = getattr(serves, _OPEN)

    def open_at_the_node(server: object, where: str) -> int:
        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        host = f"[{address}]" if ":" in address else address
        port: int = open_port(server, f"{host}:0" if where == _ANYWHERE else where)
        return port

    setattr(serves, _OPEN, open_at_the_node)
