"""Calls of gRPC that have come whole: one message of a client, and what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from reference_server.codecs.proto_fields import Data
from reference_server.core.backlog import Backlog
from reference_server.core.errors import ServerError
from reference_server.frontends.grpc.calls import STATUS, Method, Status

#: What a client sends beside its message.
Fields = Sequence[tuple[bytes, bytes]]


class End(NamedTuple):
    """How a call ends."""

    status: int = Status.OK
    text: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it is no failure."""
        return self.status == Status.OK


class Calls:
    """Has calls answered by `methods`, which are by full names. On the loop's thread."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods

    async def whole(self, method: str, fields: Fields, message: bytes) -> tuple[bytes, End]:
        """The answer's one message, and the end."""
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
        """The answer's messages, then the end; who does not want the rest closes it."""
        call = _Call(fields)
        handler = self._methods[method].start(call)
        try:
            if not call.has_ended:
                handler.receive(message)
                handler.half_close()
            while True:
                told = await call.told.get()
                yield told
                if isinstance(told, End):
                    return
                call.taken(told)
        finally:
            if not call.has_ended:
                call.close()
                handler.cancel()


class _Call:
    """A call as its method sees it; what is said of it waits in `told`."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._metadata = {name.decode(): value.decode("latin-1") for name, value in fields}
        self._unsent = 0  # bytes
        self._backlog: Backlog | None = None
        self.told: asyncio.Queue[bytes | End] = asyncio.Queue()
        self.has_ended = False

    def taken(self, message: bytes) -> None:
        """A message is on its way."""
        self._unsent -= len(message)
        self._tell_backlog()

    def metadata(self, name: str) -> str | None:
        return self._metadata.get(name)

    def fields(self) -> Fields:
        return self._fields

    def send(self, *message: Data) -> None:
        if not self.has_ended:
            data = b"".join(message)
            self._unsent += len(data)
            self.told.put_nowait(data)
            self._tell_backlog()

    def watch(self, backlog: Backlog) -> None:
        self._backlog = backlog

    def _tell_backlog(self) -> None:
        if self._backlog is not None and not self.has_ended:
            self._backlog.keep(self._unsent)

    def hold(self, *, held: bool) -> None:
        """Nothing follows the one message."""

    def end(self, error: ServerError | None = None) -> None:
        if not self.has_ended:
            self.close()
            self.told.put_nowait(End() if error is None else End(STATUS[error.code], error.message))

    def close(self) -> None:
        """Hear nothing more of the method, which need not wait for the client any more."""
        self.has_ended = True
        if self._backlog is not None:
            self._backlog.close()
