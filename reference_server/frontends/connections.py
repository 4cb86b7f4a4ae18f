"""What ports of HTTP and gRPC share: open connections, each one's share of the loop, its patience.

And the error of a port that cannot listen.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import errno
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from reference_server.core.errors import ServerError, unavailable
from reference_server.frontends.event_loop import SHARE_S
from reference_server.options import TimeLimits

#: Connections that wait to be accepted.
BACKLOG = 1024
#: The read buffer that all connections of a port share, in bytes.
SCRATCH_BYTES = 1 << 18
#: Bytes that are handled without a look at the clock: of the dearest kind some milliseconds' work,
#: unless a port has a `portion` of its own.
PORTION_BYTES = 1 << 12
_NOTHING = memoryview(b"")
#: The bytes of a body that are to come in a second.
_BODY_BYTES_PER_S = 1 << 10
#: How often connections are looked at: four times within the least limit, but not all the time.
_LOOKS = 4
_SHORTEST_SWEEP_S, _LONGEST_SWEEP_S = 0.05, 15.0

C = TypeVar("C")

#: Given the reason, one word, and the particulars when a connection or call ends badly.
Report = Callable[[str, str], None]


def report_nothing(reason: str, particulars: str) -> None:
    """For those that nobody watches."""


class OpenConnections(Generic[C]):
    """The open connections of one port, on the loop's thread.

    `leave` tells a connection to end after its answers. What comes when there are `most` (0: any
    number) leaves at once, which `report` is told.
    """

    def __init__(
        self, leave: Callable[[C], None], most: int = 0, report: Report = report_nothing
    ) -> None:
        self._leave = leave
        self._most = most
        self._report = report
        self._open: set[C] = set()
        self._none = asyncio.Event()
        self._none.set()
        self._accepting = True

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        return iter(tuple(self._open))

    def opened(self, connection: C) -> None:
        """A connection has been accepted; it leaves at once if that is over, or one too many."""
        self._open.add(connection)
        self._none.clear()
        is_too_much = 0 < self._most < len(self._open)
        if is_too_much:
            self._report("many", f"the port has {self._most} connections, its --connection-most")
        if is_too_much or not self._accepting:
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


# -- time limits: nothing is noted while requests are handled; a sweep compares what it finds


class Phase(enum.Enum):
    """What a connection waits for from its client."""

    REQUEST = "it asked for nothing"
    HEAD = "a head was not whole"
    BODY = "a body was not whole"
    READING = "it read nothing of what waits for it"

    @property
    def reason(self) -> str:
        """What it is called where ended connections are counted."""
        return _REASONS[self]


_REASONS = {
    Phase.REQUEST: "idle",
    Phase.HEAD: "head",
    Phase.BODY: "body",
    Phase.READING: "unread",
}


class Wait(NamedTuple):
    """Something that a client is to do: the `subject`-th of its kind, such as the body of a stream.

    `done` are the bytes of it that have come, or another number that changes when it goes on.
    """

    phase: Phase
    subject: int
    done: int = 0


class Patience:
    """Decides which waits of one connection have lasted too long; times are of one clock.

    A wait is as old as the first look at it, so it lasts at least as long as its limit.
    """

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = {
            Phase.REQUEST: limits.idle_s,
            Phase.HEAD: limits.head_s,
            Phase.BODY: limits.body_s,
            Phase.READING: limits.unread_s,
        }
        self._enough = limits.body_s * _BODY_BYTES_PER_S
        #: When each wait was first seen, or went on, and how far it was.
        self._seen: dict[tuple[Phase, int], tuple[float, int]] = {}

    def over(self, waits: Iterable[Wait], now_s: float) -> list[Wait]:
        """Those of the waits of now that are over."""
        over: list[Wait] = []
        seen: dict[tuple[Phase, int], tuple[float, int]] = {}
        for wait in waits:
            key, limit_s = wait[:2], self._limits[wait.phase]
            since_s, before = self._seen.get(key, (now_s, wait.done))
            if self._went_on(wait, before):
                since_s, before = now_s, wait.done
            if limit_s and now_s - since_s >= limit_s:
                over.append(wait)
            seen[key] = since_s, before
        self._seen = seen
        return over

    def _went_on(self, wait: Wait, before: int) -> bool:
        if wait.phase is Phase.BODY:
            return wait.done - before >= self._enough
        return wait.done != before


class Sweep(Generic[C]):
    """Has all connections of a port look at their clients, again and again, in shares of time.

    `look` is given a connection and the clock's time. `start` and `stop` on the loop's thread.
    """

    def __init__(
        self,
        connections: OpenConnections[C],
        look: Callable[[C, float], None],
        limits: TimeLimits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connections = connections
        self._look = look
        self._loop = loop
        set_s = [limit_s for limit_s in dataclasses.astuple(limits) if limit_s]
        every_s = min(set_s, default=0) / _LOOKS
        self._every_s = max(_SHORTEST_SWEEP_S, min(_LONGEST_SWEEP_S, every_s))
        self._is_needed = bool(set_s)
        self._handle: asyncio.Handle | None = None

    def start(self) -> None:
        """Begin."""
        if self._is_needed:
            self._handle = self._loop.call_later(self._every_s, self._go)

    def stop(self) -> None:
        """Look at nothing more."""
        if self._handle is not None:
            self._handle.cancel()

    def _go(self) -> None:
        self._go_on(iter(self._connections))

    def _go_on(self, left: Iterator[C]) -> None:
        over_s = self._loop.time() + SHARE_S
        for connection in left:
            now_s = self._loop.time()
            self._look(connection, now_s)
            if now_s >= over_s:
                self._handle = self._loop.call_soon(self._go_on, left)
                return
        self.start()


class Pausable(Protocol):
    """The side of a transport that reads."""

    def pause_reading(self) -> None:
        """Read nothing more; may be said twice."""

    def resume_reading(self) -> None:
        """Read on."""


class Incoming:
    """What a connection has read, on its way to who handles it: in portions, in its share of time.

    `handle` is given the bytes in order, as views that are valid until it returns. `plain` says how
    many of the next ones are only to be copied, such as a tensor's, and may come at once. `whole`
    says how many make a portion that cuts nothing in two, or 0. What does
    not fit the share waits, and nothing more is read until it is done: `call_soon` is asked for the
    next turn. `clock` is in seconds; `portion` in bytes.
    """

    __slots__ = (
        "_call_soon",
        "_clock",
        "_handle",
        "_is_held",
        "_is_scheduled",
        "_placed_s",
        "_plain",
        "_portion",
        "_rest",
        "_spent_s",
        "_transport",
        "_whole",
    )

    def __init__(
        self,
        handle: Callable[[memoryview], None],
        plain: Callable[[], int],
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
        portion: int = PORTION_BYTES,
        whole: Callable[[memoryview], int] = lambda data: 0,
    ) -> None:
        self._handle = handle
        self._portion = portion
        self._whole = whole
        self._plain = plain
        self._call_soon = call_soon
        self._clock = clock
        self._transport: Pausable | None = None
        self._rest = _NOTHING
        self._placed_s = 0.0  # when a place was given for what is read next
        self._spent_s = 0.0  # on reads that filled the buffer, one after the other
        self._is_held = False
        self._is_scheduled = False

    def begin(self, transport: Pausable) -> None:
        """The connection is made."""
        self._transport = transport

    def end(self) -> None:
        """The connection is gone, or what else comes is of no use."""
        self._transport = None
        self._rest = _NOTHING

    def place(self, found: Callable[[], memoryview | None]) -> memoryview | None:
        """Where `found` says that the next bytes belong, if they are handled next, or None.

        To read them there is part of the connection's share.
        """
        place = None if self._rest else found()
        self._placed_s = 0.0 if place is None else self._clock()
        return place

    def came(self, data: memoryview, room: int = SCRATCH_BYTES) -> None:
        """Take bytes, whose memory may be used for others afterwards; it had `room` for so many."""
        if len(data) <= self._portion and not self._is_held:
            self._handle(data)
            return
        begun_s = self._placed_s or self._clock()
        left = self._within_share(data)
        # Of who fills the room uvloop reads on in the same turn, up to 32 times.
        is_last = len(data) < room
        self._spent_s = 0.0 if is_last else self._spent_s + self._clock() - begun_s
        if left or self._spent_s >= SHARE_S:
            self._spent_s = 0.0
            self._rest = memoryview(bytes(left))
            self._pause()

    def hold(self) -> None:
        """Handle nothing until `release`; may be said twice, and while bytes are handled."""
        self._is_held = True
        self._pause()

    def release(self) -> None:
        """Go on, in another turn if something waits."""
        if self._is_held:
            self._is_held = False
            self._pause() if self._rest else self._resume()

    def _within_share(self, data: memoryview) -> memoryview:
        """Handle as much as may be; what is left."""
        over_s = self._clock() + SHARE_S
        while data and not self._is_held and self._transport is not None:
            size = self._whole(data) or max(self._portion, self._plain())
            portion, data = data[:size], data[size:]
            self._handle(portion)
            if self._clock() >= over_s:
                break
        return data

    def _go_on(self) -> None:
        self._is_scheduled = False
        if not self._is_held:
            rest, self._rest = self._rest, _NOTHING
            self._rest = self._within_share(rest)
            self._pause() if self._rest else self._resume()

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()
        if not self._is_held and not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._go_on)

    def _resume(self) -> None:
        if self._transport is not None and not self._is_held:
            self._transport.resume_reading()


def cannot_listen(address: str, error: OSError) -> ServerError:
    """Why `address` (`host:port`) is not listened on, in Triton's words where it has some."""
    return unavailable(
        f"Socket '{address}' already in use "
        if error.errno == errno.EADDRINUSE
        else f"cannot listen on '{address}': {error}"
    )
