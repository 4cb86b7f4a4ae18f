"""Both ends of an HTTP connection in memory: no port, no loop, no waiting."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

from reference_server.frontends.http.connection import HttpConnection
from reference_server.frontends.http.reading import KnownHeads
from reference_server.frontends.http.request import Request
from reference_server.options import TimeLimits

#: Of one read; small, so that bodies need several.
SCRATCH_BYTES = 1 << 12


class MemoryTransport(asyncio.Transport):
    """A transport that keeps what is written, and forgets nothing about how it was treated."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_reading = True
        self.is_aborted = False
        self.unread = 0  # bytes that were written and have not left, as far as it is asked
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._closing, "written to after it was closed"
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self.is_aborted = self._closing = True

    def is_closing(self) -> bool:
        return self._closing


class Client:
    """A client of one connection, whose requests go to `handle`."""

    def __init__(
        self,
        handle: Callable[[Request], None],
        *,
        opened: Callable[[HttpConnection], None] = lambda connection: None,
        closed: Callable[[HttpConnection], None] = lambda connection: None,
        scratch_bytes: int = SCRATCH_BYTES,
        max_input: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        limits: TimeLimits | None = None,
        heads: KnownHeads | None = None,
    ) -> None:
        self.reported: list[str] = []
        self.transport = MemoryTransport()
        scratch = memoryview(bytearray(scratch_bytes))
        self.turns: list[Callable[[], None]] = []
        self.connection = HttpConnection(
            *(handle, self.turns.append, scratch, opened, closed, max_input, clock, limits),
            heads=heads,
            report=lambda reason, particulars: self.reported.append(reason),
        )
        self.connection.connection_made(self.transport)

    def send(self, *pieces: bytes) -> None:
        """Send bytes; each piece arrives by itself. What comes after a close is lost."""
        for piece in pieces:
            rest = memoryview(piece)
            while rest and not self.transport.is_closing():
                buffer = self.connection.get_buffer(-1)
                count = min(len(buffer), len(rest))
                buffer[:count] = rest[:count]
                rest = rest[count:]
                self.connection.buffer_updated(count)
                self.turn()

    def turn(self) -> None:
        """Let the connection have its turns of the loop until it wants no more."""
        while self.turns:
            self.turns.pop(0)()

    def half_close(self) -> None:
        """Say that nothing more will be sent."""
        if not self.connection.eof_received():
            self.transport.close()

    def leave(self) -> None:
        """Be gone, without waiting for anything."""
        self.connection.connection_lost(None)

    def received(self) -> bytes:
        """Return the bytes received since the last call."""
        data = bytes(self.transport.sent)
        self.transport.sent.clear()
        return data

    def replies(self) -> list[Reply]:
        """The replies that have come since the last time."""
        self.turn()
        data = self.received()
        found: list[Reply] = []
        while data:
            reply, data = _split_reply(data)
            found.append(reply)
        return found

    @property
    def is_closed(self) -> bool:
        """True if the server has closed the connection."""
        return self.transport.is_closing()


@dataclass(frozen=True)
class Reply:
    """One reply; `head` are its lines up to the empty one."""

    head: tuple[str, ...]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head[0].split()[1])

    def header(self, name: str) -> str | None:
        """The value of a header, by its exact name."""
        found = [line.partition(": ")[2] for line in self.head if line.startswith(f"{name}: ")]
        return found[0] if found else None


def _split_reply(data: bytes) -> tuple[Reply, bytes]:
    head, _, rest = data.partition(b"\r\n\r\n")
    reply = Reply(tuple(head.decode("latin-1").split("\r\n")), b"")
    length = int(reply.header("Content-Length") or 0)
    assert len(rest) >= length, "a body is cut"
    return Reply(reply.head, rest[:length]), rest[length:]


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    """The bytes of a request without a body; headers as whole lines."""
    lines = [f"{method} {path} HTTP/{version}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def post(path: str, body: bytes, *headers: str) -> bytes:
    """The bytes of a POST with its true length."""
    return get(path, *headers, f"Content-Length: {len(body)}", method="POST") + body


class HandCrankedLoop:
    """The part of an event loop that a mailbox uses; `turn` runs the scheduled calls."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
        self.calls.append(functools.partial(call, *arguments) if arguments else call)

    call_soon = call_soon_threadsafe

    def turn(self) -> None:
        """Run what was called, and what that calls."""
        while self.calls:
            self.calls.pop(0)()
