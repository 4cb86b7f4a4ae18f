"""The loop that keeps a server busy: closed, so many requests in flight, or open, each when due.

One thread and the system's poll. Who is answered asks again at once, or waits for the next request
that is due. What is measured goes into flat arrays, in the order of the ends.
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
from triton_replay.wire.slots import Connection, Slot

_NEVER: Final = 2**63 - 1
_LONGEST_WAIT: Final = 1_000_000_000
_LATE: Final = 1_000_000
"""Nanoseconds from which on the load itself was late with a request."""
_PR_SET_TIMERSLACK: Final = 29

NextRequest = Callable[[Slot], bytes]
"""Gives the bytes to send for a slot."""


class Record:
    """What was measured since the load began; indexes are those of requests, by their ends."""

    def __init__(self) -> None:
        self.starts = array("q")
        """When each was due, or sent where nothing is due."""
        self.ends = array("q")
        """When its answer had come: of many responses the first."""
        self.failed: dict[int, str] = {}
        """Those without a good answer, and why."""
        self.sending = array("q")
        """How long each took from its start until the system had its bytes."""
        self.responses: list[array[int]] | None = None
        """When each response to it came, where that is kept."""
        self.sequences = array("q")
        """Their ids, where there are any."""
        self.late = 0
        """Requests that were sent a millisecond or more too late by the load itself."""


class Loop:
    """Sends and receives. Times are nanoseconds of `time.perf_counter_ns`.

    connect: makes a connection in `poll` and `by_number`, without opening it.
    next_request: what to send.
    prepare: is shown each slot once before it is used.
    silence: seconds without any answer after which the server is given up.
    """

    def __init__(
        self,
        connect: Callable[[Loop], Connection],
        next_request: NextRequest,
        prepare: Callable[[Slot], None],
        *,
        silence: float,
    ) -> None:
        if not hasattr(select, "epoll"):
            raise ReplayError("load needs Linux: this system has no epoll")
        self.poll = select.epoll()
        self.by_number: dict[int, Connection] = {}
        self.record = Record()
        self._connect = connect
        self._next_request = next_request
        self._prepare = prepare
        self._limit = 0
        self._silence = int(silence * 1e9)
        self._slots: list[Slot] = []
        self._idle: deque[Slot] = deque()
        self._in_flight = 0
        self._closed = False
        self._left = 0
        """Requests that a closed loop has still to send."""
        self._dues: Iterator[int] | None = None
        self._next_due = _NEVER
        self._waiting: deque[int] = deque()
        self._heard = 0
        self._woken = False
        _wake_up_in_time()
        _allow_connections()

    # -- what is to be done

    def keep(self, in_flight: int, requests: int = _NEVER) -> None:
        """From now on keep so many requests in flight, for so many requests."""
        self._closed, self._limit, self._left = True, in_flight, requests
        self._heard = now = time.perf_counter_ns()
        while len(self._slots) < in_flight:
            self._grow()
        while self._in_flight < in_flight and self._left:
            self._left -= 1
            self._send(self._idle.popleft(), now)
        for connection in {slot.connection for slot in self._slots}:
            connection.flush()

    def follow(self, dues: Iterator[int], limit: int) -> None:
        """From now on send each request when it is due; beyond so many in flight it waits."""
        self._closed, self._dues, self._limit = False, dues, limit
        self._next_due = next(dues, _NEVER)
        self._heard = time.perf_counter_ns()

    def stop(self) -> int:
        """Send no more; how many were due and could not be sent."""
        self._closed, self._dues, self._next_due = False, None, _NEVER
        left = len(self._waiting)
        self._waiting.clear()
        return left

    def drain(self) -> None:
        """Stop, end all sequences, and wait for all answers. Raises ServerUnreachable."""
        self.stop()
        self._wait_for_answers()
        for slot in self._slots:
            if slot.sequence is not None and slot.sequence.is_open:
                slot.sequence.shorten()
                self._idle.remove(slot)
                self._send(slot, time.perf_counter_ns())
                slot.connection.flush()
        self._wait_for_answers()

    def _wait_for_answers(self) -> None:
        ends = len(self.record.ends)
        while self._in_flight:
            ends += self._in_flight
            self.run(_NEVER, ends)

    def ask(self, connection: Connection, request: bytes, reply: Callable[[Slot], None]) -> None:
        """Ask something else beside the load; `reply` gets the answer, from within `run`."""
        slot = connection.slots[0]
        slot.reply = reply
        connection.ask(slot, request)
        connection.flush()

    def wake(self) -> None:
        """Have `run` return; for replies."""
        self._woken = True

    @property
    def silence(self) -> int:
        """Nanoseconds after which the server is given up."""
        return self._silence

    def close(self) -> None:
        """End all connections."""
        for connection in list(self.by_number.values()):
            connection.close()
        self.poll.close()

    # -- doing it

    def run(self, until: int, ends: int = _NEVER) -> None:
        """Go on until that time, or until so many requests are recorded.

        Raises ServerUnreachable.
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
            if self._in_flight and now - self._heard > self._silence:
                seconds = self._silence / 1e9
                raise ServerUnreachable(f"the server has answered nothing for {seconds:g} s")
            for number, mask in self._events(min(until, now + _LONGEST_WAIT) - now):
                connection = by_number.get(number)
                if connection is None:  # closed by what came before it in this round
                    continue
                connection.handle(mask, done)
                if done:
                    self._take(done, clock())
                connection.flush()

    def _events(self, wait: int) -> list[tuple[int, int]]:
        """What has happened on the connections, when something has or the time has come."""
        if self._next_due == _NEVER:
            return self.poll.poll(wait / 1e9)
        wait = min(wait, self._next_due - time.perf_counter_ns())
        if wait > 0:
            # Which wakes within microseconds, where epoll counts milliseconds.
            select.select((self.poll,), (), (), wait / 1e9)
        return self.poll.poll(0)

    def _take(self, done: list[Slot], now: int) -> None:
        """Record requests that are over, and send the next ones."""
        record = self.record
        self._heard = now
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
            self._heard = due
        self._in_flight += 1
        slot.connection.ask(slot, self._next_request(slot))
        slot.sent = time.perf_counter_ns()

    def _send_due(self, now: int) -> None:
        assert self._dues is not None
        asked: set[Connection] = set()
        while self._next_due <= now:
            due, self._next_due = self._next_due, next(self._dues, _NEVER)
            if not self._idle and len(self._slots) < self._limit:
                self._grow()
            if not self._idle:
                self._waiting.append(due)
                continue
            if now - due > _LATE:
                self.record.late += 1
            slot = self._idle.popleft()  # sequences take turns
            self._send(slot, due)
            asked.add(slot.connection)
        for connection in asked:
            connection.flush()

    def _grow(self) -> None:
        slots = self._connect(self).slots[: self._limit - len(self._slots)]
        for slot in slots:
            self._prepare(slot)
        self._slots += slots
        self._idle.extend(slots)


def _wake_up_in_time() -> None:
    """Have the system wake this thread when it is to, not up to 50 us later."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _allow_connections() -> None:
    """As many files as the system lets a process have: each connection is one."""
    import resource  # which not all systems have

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
