"""Shared parts of the HTTP and gRPC ports: open connections, time limits, fair reading.

The module also has the error of a port that cannot listen.
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

#: The listen backlog: connections waiting to be accepted.
BACKLOG = 1024
#: The read buffer that all connections of a port share, in bytes.
SCRATCH_BYTES = 1 << 18
#: Bytes handled between two reads of the clock: at most some milliseconds of work. A port may have
#: its own `portion`.
PORTION_BYTES = 1 << 12
_NOTHING = memoryview(b"")
#: The slowest accepted rate of a body.
_BODY_BYTES_PER_S = 1 << 10
#: Connections are checked four times per shortest time limit, at intervals within these bounds.
_CHECKS_PER_LIMIT = 4
_SHORTEST_SWEEP_S, _LONGEST_SWEEP_S = 0.05, 15.0

C = TypeVar("C")

#: Called when a connection or call ends abnormally, with a one-word reason and the details.
Report = Callable[[str, str], None]


def report_nothing(reason: str, details: str) -> None:
    """Ignore the report."""


class OpenConnections(Generic[C]):
    """The open connections of one port. Used on the event loop's thread.

    Args:
        close: closes a connection once its requests are answered.
        limit: the largest number of open connections; 0 is no limit. A connection beyond it is
            closed at once.
        report: called for each connection beyond the limit.
    """

    def __init__(
        self, close: Callable[[C], None], limit: int = 0, report: Report = report_nothing
    ) -> None:
        self._close = close
        self._limit = limit
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
        """Register an accepted connection. Close it if the port is draining or at its limit."""
        self._open.add(connection)
        self._none.clear()
        is_too_many = 0 < self._limit < len(self._open)
        if is_too_many:
            self._report("many", f"limit of {self._limit} connections reached (--connection-most)")
        if is_too_many or not self._accepting:
            self._close(connection)

    def closed(self, connection: C) -> None:
        """Remove a closed connection."""
        self._open.discard(connection)
        if not self._open:
            self._none.set()

    def stop_accepting(self, *, closes_open: bool = True) -> None:
        """Close the connections that are accepted later and, with `closes_open`, the open ones."""
        self._accepting = False
        if closes_open:
            for connection in self:
                self._close(connection)

    async def drained(self) -> None:
        """Return when no connection is left."""
        await self._none.wait()


# -- time limits: a periodic sweep compares the states of connections; requests update no timers


class Phase(enum.Enum):
    """The next step that a connection waits for from its client."""

    REQUEST = "idle timeout"
    HEAD = "header timeout"
    BODY = "body timeout"
    READING = "write timeout: the client reads nothing of its replies"

    @property
    def reason(self) -> str:
        """The reason in the metric of ended connections."""
        return _REASONS[self]


_REASONS = {Phase.REQUEST: "idle", Phase.HEAD: "head", Phase.BODY: "body", Phase.READING: "unread"}


class Wait(NamedTuple):
    """A step that the client has to take.

    `subject` distinguishes steps of one phase, such as the streams with an incomplete body.

    `done` is the number of received bytes, or another number that changes on progress.
    """

    phase: Phase
    subject: int
    done: int = 0


class ClientTimeouts:
    """Finds the waits of one connection that exceed their time limit. Times are of one clock.

    A wait starts when it is first checked, so it lasts at least as long as its limit.
    """

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = {
            Phase.REQUEST: limits.idle_s,
            Phase.HEAD: limits.head_s,
            Phase.BODY: limits.body_s,
            Phase.READING: limits.unread_s,
        }
        self._expected_bytes = limits.body_s * _BODY_BYTES_PER_S
        #: The time of each wait's last progress, and its `done` at that time.
        self._seen: dict[tuple[Phase, int], tuple[float, int]] = {}

    def expired(self, waits: Iterable[Wait], now_s: float) -> list[Wait]:
        """Return the current waits that have expired."""
        expired: list[Wait] = []
        seen: dict[tuple[Phase, int], tuple[float, int]] = {}
        for wait in waits:
            key, limit_s = wait[:2], self._limits[wait.phase]
            since_s, before = self._seen.get(key, (now_s, wait.done))
            if self._has_progress(wait, before):
                since_s, before = now_s, wait.done
            if limit_s and now_s - since_s >= limit_s:
                expired.append(wait)
            seen[key] = since_s, before
        self._seen = seen
        return expired

    def _has_progress(self, wait: Wait, before: int) -> bool:
        if wait.phase is Phase.BODY:
            return wait.done - before >= self._expected_bytes
        return wait.done != before


class Sweep(Generic[C]):
    """Checks the time limits of all connections of a port periodically, without blocking the loop.

    Args:
        connections: the connections.
        check: called with a connection and the loop's time.
        limits: the time limits; if all are 0, nothing is checked.
        loop: `start` and `stop` are called on its thread.
    """

    def __init__(
        self,
        connections: OpenConnections[C],
        check: Callable[[C, float], None],
        limits: TimeLimits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connections = connections
        self._check = check
        self._loop = loop
        set_s = [limit_s for limit_s in dataclasses.astuple(limits) if limit_s]
        every_s = min(set_s, default=0) / _CHECKS_PER_LIMIT
        self._every_s = max(_SHORTEST_SWEEP_S, min(_LONGEST_SWEEP_S, every_s))
        self._is_needed = bool(set_s)
        self._handle: asyncio.Handle | None = None

    def start(self) -> None:
        """Start, or schedule the next sweep."""
        if self._is_needed:
            self._handle = self._loop.call_later(self._every_s, self._check_all)

    def stop(self) -> None:
        """Stop checking."""
        if self._handle is not None:
            self._handle.cancel()

    def _check_all(self) -> None:
        self._check_remaining(iter(self._connections))

    def _check_remaining(self, left: Iterator[C]) -> None:
        over_s = self._loop.time() + SHARE_S
        for connection in left:
            now_s = self._loop.time()
            self._check(connection, now_s)
            if now_s >= over_s:
                self._handle = self._loop.call_soon(self._check_remaining, left)
                return
        self.start()


class Pausable(Protocol):
    """The reading side of a transport."""

    def pause_reading(self) -> None:
        """Stop reading. May be called twice."""

    def resume_reading(self) -> None:
        """Read again."""


class Incoming:
    """Passes received bytes to their parser, for at most `SHARE_S` of each loop iteration.

    The bytes are passed in portions. Bytes beyond this share of time are kept for the next loop
    iteration; until then the transport does not read.

    Args:
        handle: parses bytes, passed in order as views that are valid until `handle` returns.
        opaque_bytes: returns the number of upcoming bytes that are only copied, such as a tensor;
            these may be passed in one portion.
        call_soon: schedules a call for the next loop iteration.
        clock: the time in seconds.
        portion: bytes between two reads of the clock.
        whole: returns the size of a portion that ends at a frame boundary, or 0.
    """

    __slots__ = (
        "_call_soon",
        "_clock",
        "_handle",
        "_is_held",
        "_is_scheduled",
        "_opaque_bytes",
        "_placed_s",
        "_portion",
        "_rest",
        "_spent_s",
        "_transport",
        "_whole",
    )

    def __init__(
        self,
        handle: Callable[[memoryview], None],
        opaque_bytes: Callable[[], int],
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
        portion: int = PORTION_BYTES,
        whole: Callable[[memoryview], int] = lambda data: 0,
    ) -> None:
        self._handle = handle
        self._portion = portion
        self._whole = whole
        self._opaque_bytes = opaque_bytes
        self._call_soon = call_soon
        self._clock = clock
        self._transport: Pausable | None = None
        self._rest = _NOTHING
        self._placed_s = 0.0  # when the buffer for the next read was chosen
        self._spent_s = 0.0  # on consecutive reads that filled the buffer
        self._is_held = False
        self._is_scheduled = False

    def begin(self, transport: Pausable) -> None:
        """Store the transport of the new connection."""
        self._transport = transport

    def end(self) -> None:
        """Discard all bytes: the connection is closed, or ignores further bytes."""
        self._transport = None
        self._rest = _NOTHING

    def buffer(self, find: Callable[[], memoryview | None]) -> memoryview | None:
        """Return the buffer for the next read, from `find`; None if received bytes wait.

        The time of that read counts for the connection's share.
        """
        buffer = None if self._rest else find()
        self._placed_s = 0.0 if buffer is None else self._clock()
        return buffer

    def receive(self, data: memoryview, room: int = SCRATCH_BYTES) -> None:
        """Pass on bytes that were read into a reusable buffer of `room` bytes."""
        if len(data) <= self._portion and not self._is_held:
            self._handle(data)
            return
        started_s = self._placed_s or self._clock()
        left = self._within_share(data)
        # While reads fill the buffer, uvloop reads again in the same iteration, up to 32 times.
        is_last = len(data) < room
        self._spent_s = 0.0 if is_last else self._spent_s + self._clock() - started_s
        if left or self._spent_s >= SHARE_S:
            self._spent_s = 0.0
            self._rest = memoryview(bytes(left))
            self._pause()

    def hold(self) -> None:
        """Pass on nothing until `release`. May be called twice, and while bytes are handled."""
        self._is_held = True
        self._pause()

    def release(self) -> None:
        """Continue; if bytes wait, in another loop iteration."""
        if self._is_held:
            self._is_held = False
            self._pause() if self._rest else self._resume()

    def _within_share(self, data: memoryview) -> memoryview:
        """Pass on portions within the connection's share. Return the rest."""
        over_s = self._clock() + SHARE_S
        while data and not self._is_held and self._transport is not None:
            size = self._whole(data) or max(self._portion, self._opaque_bytes())
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


def listen_error(address: str, error: OSError) -> ServerError:
    """Return the error of a port that cannot listen on `address` (`host:port`).

    The text for a port in use is Triton's.
    """
    return unavailable(
        f"Socket '{address}' already in use "
        if error.errno == errno.EADDRINUSE
        else f"cannot listen on '{address}': {error}"
    )
