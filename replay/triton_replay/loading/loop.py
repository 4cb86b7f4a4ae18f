"""The event loop of a load: a closed loop, or an open loop with due times.

A closed loop keeps a number of requests in flight: each response is followed by the next request.
An open loop sends each request when it is due. The loop has one thread and uses epoll. Measured
times go into flat arrays, in the order of the responses.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.wire.sockets import Connection, Slot

_NEVER: Final = 2**63 - 1
_LONGEST_WAIT: Final = 1_000_000_000
_LATE: Final = 1_000_000
"""A request that is sent this many nanoseconds after its due time counts as late."""
_PR_SET_TIMERSLACK: Final = 29

NextRequest = Callable[[Slot], bytes]
"""Returns the bytes of the next request of a slot."""


class Record:
    """Times of all requests since the start of the load, in the order of their responses."""

    def __init__(self) -> None:
        self.starts = array("q")
        """Due time of each request; in a closed loop, the time at which it was sent."""
        self.ends = array("q")
        """Time of each complete response; with several responses, of the first one."""
        self.failed: dict[int, str] = {}
        """Reasons of failed requests, by index."""
        self.sending = array("q")
        """Duration from the start of each request until the system accepted its bytes."""
        self.responses: list[array[int]] | None = None
        """Times of all responses of each request, or None if they are not recorded."""
        self.sequences = array("q")
        """Sequence id of each request, if the model has sequences."""
        self.late = 0
        """Number of requests that the load generator sent at least 1 ms late by its own fault."""


class Loop:
    """Sends requests and receives responses. Times are nanoseconds of `time.perf_counter_ns`.

    Not thread-safe.

    Args:
        connect: Creates a connection that uses the loop's `poll` and `by_number`.
        next_request: Returns the next request of a slot.
        prepare: Initializes a new slot.
        timeout: Seconds without any response after which the server counts as unreachable.

    Raises:
        ReplayError: The system has no epoll.
    """

    def __init__(
        self,
        connect: Callable[[Loop], Connection],
        next_request: NextRequest,
        prepare: Callable[[Slot], None],
        *,
        timeout: float,
    ) -> None:
        if not hasattr(select, "epoll"):
            raise ReplayError("load: this system has no epoll; expected Linux")
        self.poll = select.epoll()
        self.by_number: dict[int, Connection] = {}
        self.record = Record()
        self._connect = connect
        self._next_request = next_request
        self._prepare = prepare
        self._limit = 0
        self._timeout = int(timeout * 1e9)
        self._slots: list[Slot] = []
        self._idle: deque[Slot] = deque()
        self._in_flight = 0
        self._closed = False
        self._left = 0
        """Requests that the closed loop still has to send."""
        self._dues: Iterator[int] | None = None
        self._next_due = _NEVER
        self._waiting: deque[int] = deque()
        self._last_response = 0
        self._woken = False
        _reduce_timer_slack()
        _raise_file_limit()

    # -- control

    def keep(self, in_flight: int, requests: int = _NEVER) -> None:
        """Start a closed loop.

        Args:
            in_flight: Number of requests in flight.
            requests: Total number of requests.
        """
        self._closed, self._limit, self._left = True, in_flight, requests
        self._last_response = now = time.perf_counter_ns()
        while len(self._slots) < in_flight:
            self._grow()
        while self._in_flight < in_flight and self._left:
            self._left -= 1
            self._send(self._idle.popleft(), now)
        for connection in {slot.connection for slot in self._slots}:
            connection.flush()

    def follow(self, dues: Iterator[int], limit: int) -> None:
        """Start an open loop.

        Args:
            dues: Times at which requests are due, ascending.
            limit: Largest number of requests in flight; further requests wait.
        """
        self._closed, self._dues, self._limit = False, dues, limit
        self._next_due = next(dues, _NEVER)
        self._last_response = time.perf_counter_ns()

    def stop(self) -> int:
        """Stop sending; return the number of requests that were due but not sent."""
        self._closed, self._dues, self._next_due = False, None, _NEVER
        left = len(self._waiting)
        self._waiting.clear()
        return left

    def drain(self) -> None:
        """Stop sending, end all sequences, and wait for all responses.

        Raises:
            ServerUnreachable: The server does not respond.
        """
        self.stop()
        self._wait_for_responses()
        for slot in self._slots:
            if slot.sequence is not None and slot.sequence.is_open:
                slot.sequence.shorten()
                self._idle.remove(slot)
                self._send(slot, time.perf_counter_ns())
                slot.connection.flush()
        self._wait_for_responses()

    def _wait_for_responses(self) -> None:
        ends = len(self.record.ends)
        while self._in_flight:
            ends += self._in_flight
            self.run(_NEVER, ends)

    def query(self, connection: Connection, request: bytes, reply: Callable[[Slot], None]) -> None:
        """Send a request that is not part of the load; `run` calls `reply` with its response."""
        slot = connection.slots[0]
        slot.reply = reply
        connection.send(slot, request)
        connection.flush()

    def wake(self) -> None:
        """Make `run` return. For use in replies."""
        self._woken = True

    @property
    def timeout(self) -> int:
        """Nanoseconds without any response after which the server counts as unreachable."""
        return self._timeout

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self.by_number.values()):
            connection.close()
        self.poll.close()

    # -- events

    def run(self, until: int, ends: int = _NEVER) -> None:
        """Run the load until a time, or until `ends` requests are recorded in total.

        Raises:
            ServerUnreachable: The server does not respond.
        """
        record, by_number = self.record, self.by_number
        clock = time.perf_counter_ns
        done: list[Slot] = []
        while True:
            now = clock()
            if self._next_due <= now:
                self._send_due(now)
            if now >= until or len(record.ends) >= ends or self._woken:
                self._woken = False
                return
            if self._in_flight and now - self._last_response > self._timeout:
                seconds = self._timeout / 1e9
                raise ServerUnreachable(f"no response from the server for {seconds:g} s")
            for number, mask in self._events(min(until, now + _LONGEST_WAIT) - now):
                connection = by_number.get(number)
                if connection is None:  # closed by an earlier event
                    continue
                connection.handle(mask, done)
                if done:
                    self._take(done, clock())
                connection.flush()

    def _events(self, wait: int) -> list[tuple[int, int]]:
        """Wait for events of sockets, at most `wait` nanoseconds or until a request is due."""
        if self._next_due == _NEVER:
            return self.poll.poll(wait / 1e9)
        wait = min(wait, self._next_due - time.perf_counter_ns())
        if wait > 0:
            # The timeout of select has a resolution of microseconds, that of epoll milliseconds.
            select.select((self.poll,), (), (), wait / 1e9)
        return self.poll.poll(0)

    def _take(self, done: list[Slot], now: int) -> None:
        """Record completed requests, and send the next ones."""
        record = self.record
        self._last_response = now
        for slot in done:
            if slot.reply is not None:
                reply, slot.reply = slot.reply, None
                reply(slot)
                continue
            self._in_flight -= 1
            if slot.failure:
                record.failed[len(record.ends)] = slot.failure
                if slot.sequence is not None:
                    slot.sequence.give_up()
            record.starts.append(slot.due)
            record.ends.append(slot.first or now)
            record.sending.append(slot.sent - slot.due)
            if record.responses is not None:
                times = slot.times
                record.responses.append(array("q", (now,)) if times is None else times)
            if slot.sequence is not None:
                record.sequences.append(slot.sequence.id)
            if self._closed and self._left:
                self._left -= 1
                self._send(slot, time.perf_counter_ns())
            elif self._waiting:
                self._send(slot, self._waiting.popleft())
            else:
                self._idle.append(slot)
        done.clear()

    def _send(self, slot: Slot, due: int) -> None:
        slot.due = due
        slot.first = 0
        if not self._in_flight:
            self._last_response = due
        self._in_flight += 1
        slot.connection.send(slot, self._next_request(slot))
        slot.sent = time.perf_counter_ns()

    def _send_due(self, now: int) -> None:
        assert self._dues is not None
        used: set[Connection] = set()
        while self._next_due <= now:
            due, self._next_due = self._next_due, next(self._dues, _NEVER)
            if not self._idle and len(self._slots) < self._limit:
                self._grow()
            if not self._idle:
                self._waiting.append(due)
                continue
            if now - due > _LATE:
                self.record.late += 1
            slot = self._idle.popleft()  # the one idle for longest, so that sequences alternate
            self._send(slot, due)
            used.add(slot.connection)
        for connection in used:
            connection.flush()

    def _grow(self) -> None:
        slots = self._connect(self).slots[: self._limit - len(self._slots)]
        for slot in slots:
            self._prepare(slot)
        self._slots += slots
        self._idle.extend(slots)


def _reduce_timer_slack() -> None:
    """Make the kernel wake this thread on time; by default it may be 50 us late."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _raise_file_limit() -> None:
    """Raise the limit of open files to its maximum: each connection needs one."""
    import resource  # not available on all systems

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
