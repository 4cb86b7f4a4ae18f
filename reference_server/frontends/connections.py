"""The open connections of a port, of HTTP or gRPC, and the error when it cannot listen."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from reference_server.core.errors import ServerError, unavailable

#: Connections that wait to be accepted.
BACKLOG = 1024
#: The read buffer that all connections of a port share, in bytes.
SCRATCH_BYTES = 1 << 18

C = TypeVar("C")


class OpenConnections(Generic[C]):
    """The open connections of one port, on the loop's thread.

    `leave` tells a connection to end after its answers.
    """

    def __init__(self, leave: Callable[[C], None]) -> None:
        self._leave = leave
        self._open: set[C] = set()
        self._none = asyncio.Event()
        self._none.set()
        self._accepting = True

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        return iter(tuple(self._open))

    def opened(self, connection: C) -> None:
        """A connection has been accepted; it leaves at once if that is over."""
        self._open.add(connection)
        self._none.clear()
        if not self._accepting:
            self._leave(connection)

    def closed(self, connection: C) -> None:
        """A connection is no more."""
        self._open.discard(connection)
        if not self._open:
            self._none.set()

    def stop_accepting(self) -> None:
        """Let all leave, and those that are still to come."""
        self._accepting = False
        for connection in self:
            self._leave(connection)

    async def gone(self) -> None:
        """Return when no connection is left."""
        await self._none.wait()


def cannot_listen(address: str, error: OSError) -> ServerError:
    """Why `address` (`host:port`) is not listened on, in Triton's words where it has some."""
    return unavailable(
        f"Socket '{address}' already in use "
        if error.errno == errno.EADDRINUSE
        else f"cannot listen on '{address}': {error}"
    )
