"""gRPC calls with one complete message of the client, and their responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from reference_server.codecs.proto_fields import Data
from reference_server.core.backlog import Backlog
from reference_server.core.errors import ServerError
from reference_server.frontends.grpc.calls import STATUS, Method, Status

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
        """Note that a message was taken from the queue."""
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
        """Ignore it: the call has one message."""

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
