"""The arbiter of a workspace pool: decides which waiter gets memory, and when; and its data types.

The arbiter is a pure state machine: its methods receive `now`, and it has no threads, locks or
clocks. Memory is granted in the order of arrival. So a waiter that needs little never passes a
waiter that needs much: the pool drains until the first waiter fits. A waiter gets its memory at the
latest after as many releases as there were live and waiting leases at its arrival. When nothing is
leased, no waiter waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import TracebackType

from ge_runtime.memory.lifetimes import Suballocator
from ge_runtime.memory.plan import aligned_columns


class Outcome(Enum):
    """State of a waiter. All states except WAITING and GRANTED are final."""

    WAITING = auto()
    GRANTED = auto()
    RELEASED = auto()
    TIMED_OUT = auto()
    CANCELLED = auto()
    FULL = auto()
    NEVER_FITS = auto()
    CLOSED = auto()


@dataclass(slots=True, eq=False)
class Waiter:
    """One request for memory of a pool, until it is released.

    Only the pool's arbiter writes it. Compared by identity, as two waiters may have equal values.
    """

    nbytes: int
    owner: str
    deadline: float = math.inf
    """Seconds on the pool's clock."""
    outcome: Outcome = Outcome.WAITING
    offset: int = 0
    """Bytes from the pool's start, once granted."""
    requested_at: float = 0.0
    waited_s: float = 0.0


class Lease:
    """The bytes [offset, offset + nbytes) of a pool, until `release` or the end of `with`.

    Created by `WorkspacePool.lease`. The bytes belong to this lease alone. Hold one lease at a
    time, for one execution: threads that wait for second leases may deadlock.
    """

    __slots__ = ("_on_release", "_waiter")

    def __init__(self, waiter: Waiter, on_release: Callable[[Waiter], None]) -> None:
        self._waiter = waiter
        self._on_release = on_release

    @property
    def offset(self) -> int:
        """Bytes from the pool's start; a multiple of `workspace.ALIGNMENT`."""
        return self._waiter.offset

    @property
    def nbytes(self) -> int:
        """The requested number of bytes."""
        return self._waiter.nbytes

    @property
    def owner(self) -> str:
        """The name given by the caller, for messages."""
        return self._waiter.owner

    @property
    def waited_s(self) -> float:
        """Seconds from request to grant; exactly 0 if the bytes were free."""
        return self._waiter.waited_s

    def release(self) -> None:
        """Return the bytes to the pool. Does not block. Idempotent; safe from any thread."""
        self._on_release(self._waiter)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        waiter = self._waiter
        state = "held" if waiter.outcome is Outcome.GRANTED else "released"
        end = waiter.offset + waiter.nbytes
        return f"<Lease of {waiter.owner}: bytes {waiter.offset:,} to {end:,}, {state}>"


@dataclass(frozen=True, slots=True)
class Held:
    """Leases held by one owner. An idle owner that holds something has a leak."""

    leases: int
    nbytes: int


@dataclass(slots=True)
class PoolStats:
    """Sizes in bytes, times in seconds; counts since the pool was created."""

    capacity: int
    leased: int = 0
    peak: int = 0
    """Largest number of bytes leased at the same time."""
    largest_free: int = 0
    """Size of the largest free range; a larger lease has to wait, even if more is free in total."""
    waiting: int = 0
    """Number of leases waiting now."""
    granted: int = 0
    """Number of granted leases, including those that waited."""
    waited: int = 0
    """Number of leases that waited, granted or not."""
    wait_s: float = 0.0
    """Total time of ended waits."""
    longest_wait_s: float = 0.0
    timeouts: int = 0
    cancelled: int = 0
    refused: int = 0
    """Number of leases larger than the pool, beyond the queue limit, or after closing."""
    by_owner: Mapping[str, Held] = field(default_factory=dict)
    """The leases held now, by owner."""

    def table(self) -> list[str]:
        """Return the statistics as text, one line each."""
        held = [
            (f"  {owner}", held.nbytes, f" in {held.leases} lease(s)")
            for owner, held in self.by_owner.items()
        ]
        sizes = [
            ("capacity", self.capacity, ""),
            ("leased", self.leased, ""),
            *held,
            ("peak", self.peak, ""),
            ("largest free", self.largest_free, ""),
        ]
        waits = f"for {self.wait_s:.3f} s in total, {self.longest_wait_s:.3f} s at most"
        counts = [
            ("waiting", self.waiting, ""),
            ("granted", self.granted, ""),
            ("waited", self.waited, waits if self.waited else ""),
            ("timeouts", self.timeouts, ""),
            ("cancelled", self.cancelled, ""),
            ("refused", self.refused, ""),
        ]
        return aligned_columns(
            [
                *((name, f"{nbytes:,}", f"bytes{note}") for name, nbytes, note in sizes),
                *((name, f"{count:,}", note) for name, count, note in counts),
            ],
            "<><",
        )


class Arbiter:
    """Decides over the bytes [0, capacity). Not thread-safe.

    Methods return the waiters that stop waiting; the `outcome` of each says why.
    """

    def __init__(self, capacity: int, *, alignment: int, queue_limit: int) -> None:
        """Start with nothing leased.

        Args:
            capacity: Bytes.
            alignment: Offsets are multiples of it.
            queue_limit: See WorkspacePool.
        """
        self.capacity = capacity
        self.closed = False
        self._alignment = alignment
        self._queue_limit = queue_limit
        self._range = Suballocator(capacity)
        self._live: set[Waiter] = set()
        self._waiting: list[Waiter] = []  # in order of arrival
        self._stats = PoolStats(capacity)  # without the values that `stats` computes

    @property
    def idle(self) -> bool:
        """True if nothing is leased."""
        return not self._live

    def request(self, waiter: Waiter, now: float) -> Sequence[Waiter]:
        """Add a new waiter; afterwards its outcome is WAITING, GRANTED or a refusal."""
        waiter.requested_at = now
        if self.closed:
            self._refuse(waiter, Outcome.CLOSED)
        elif waiter.nbytes > self.capacity:
            self._refuse(waiter, Outcome.NEVER_FITS)
        elif waiter.deadline <= now:
            waiter.outcome = Outcome.TIMED_OUT
            self._stats.timeouts += 1
        elif self._waiting or not self._grant(waiter):
            self._waiting.append(waiter)
            ended = self._serve(now)
            if waiter.outcome is Outcome.WAITING:
                # Only now, as serving may have shortened the queue.
                if len(self._waiting) > self._queue_limit:
                    self._waiting.pop()
                    self._refuse(waiter, Outcome.FULL)
                else:
                    self._stats.waited += 1
            return ended
        return ()

    def release(self, waiter: Waiter, now: float) -> Sequence[Waiter]:
        """Take back a lease. Does nothing for a waiter that holds none."""
        if waiter.outcome is not Outcome.GRANTED:
            return ()
        waiter.outcome = Outcome.RELEASED
        self._live.remove(waiter)
        self._range.free(waiter.offset)
        return self._serve(now) if self._waiting else ()

    def withdraw(self, waiter: Waiter, now: float) -> Sequence[Waiter]:
        """End a waiter whose user has given up, whether it waits or was just granted."""
        # The memory was granted after the user last checked: other waiters get it.
        if waiter.outcome is Outcome.GRANTED:
            self._stats.cancelled += 1
            ended = self.release(waiter, now)
            waiter.outcome = Outcome.CANCELLED
            return ended
        if waiter.outcome is not Outcome.WAITING:
            return ()
        self._stats.cancelled += 1
        self._waiting.remove(waiter)
        self._end_wait(waiter, Outcome.CANCELLED, now)
        return [waiter, *self._serve(now)]

    def expire(self, now: float) -> Sequence[Waiter]:
        """End the waiters whose deadlines have passed; other waiters may then fit."""
        return self._serve(now) if self._waiting else ()

    def close(self, now: float) -> Sequence[Waiter]:
        """Grant nothing from now on. Live leases stay valid until they are released."""
        self.closed = True
        ended, self._waiting = self._waiting, []
        for waiter in ended:
            self._stats.refused += 1
            self._end_wait(waiter, Outcome.CLOSED, now)
        return ended

    def stats(self) -> PoolStats:
        """Return the current statistics."""
        by_owner: dict[str, Held] = {}
        for waiter in sorted(self._live, key=lambda waiter: waiter.offset):
            held = by_owner.get(waiter.owner, Held(0, 0))
            by_owner[waiter.owner] = Held(held.leases + 1, held.nbytes + waiter.nbytes)
        return replace(
            self._stats,
            leased=self.capacity - self._range.free_bytes,
            largest_free=self._range.largest_free,
            waiting=len(self._waiting),
            by_owner=by_owner,
        )

    def _serve(self, now: float) -> list[Waiter]:
        """Drop expired waiters, then grant waiters from the first on until one does not fit."""
        ended = [waiter for waiter in self._waiting if waiter.deadline <= now]
        if ended:
            self._waiting = [waiter for waiter in self._waiting if waiter.deadline > now]
            self._stats.timeouts += len(ended)
            for waiter in ended:
                self._end_wait(waiter, Outcome.TIMED_OUT, now)
        while self._waiting and self._grant(self._waiting[0]):
            waiter = self._waiting.pop(0)
            self._end_wait(waiter, Outcome.GRANTED, now)
            ended.append(waiter)
        return ended

    def _grant(self, waiter: Waiter) -> bool:
        # A lease of 0 bytes takes 1, so that it has an offset of its own.
        offset = self._range.allocate(max(1, waiter.nbytes), self._alignment)
        if offset is None:
            return False
        waiter.offset = offset
        waiter.outcome = Outcome.GRANTED
        self._live.add(waiter)
        self._stats.granted += 1
        self._stats.peak = max(self._stats.peak, self.capacity - self._range.free_bytes)
        return True

    def _refuse(self, waiter: Waiter, outcome: Outcome) -> None:
        waiter.outcome = outcome
        self._stats.refused += 1

    def _end_wait(self, waiter: Waiter, outcome: Outcome, now: float) -> None:
        waiter.outcome = outcome
        waiter.waited_s = now - waiter.requested_at
        self._stats.wait_s += waiter.waited_s
        self._stats.longest_wait_s = max(self._stats.longest_wait_s, waiter.waited_s)
