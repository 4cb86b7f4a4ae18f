"""Values of a workspace pool: waiters, leases and statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType

from ge_runtime.memory.plan import aligned_columns


class Outcome(Enum):
    """State of a waiter. All but WAITING and GRANTED are final."""

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

    Only the pool's arbiter writes it. Compared by identity, as two may request the same.
    """

    nbytes: int
    owner: str
    priority: int = 0
    deadline: float = math.inf
    """Seconds on the pool's clock."""
    outcome: Outcome = Outcome.WAITING
    offset: int = 0
    """Bytes from the pool's start, once granted."""
    requested_at: float = 0.0
    waited_s: float = 0.0
    bypassed: int = 0
    """Number of later waiters that were granted before it."""


class Lease:
    """The bytes [offset, offset + nbytes) of a pool, until `release` or the end of `with`.

    Created by `WorkspacePool.lease`. The bytes belong to this lease alone. Hold one lease at a
    time, for one execution: a thread that waits for a second lease may deadlock with another.
    """

    __slots__ = ("_on_release", "_waiter")

    def __init__(self, waiter: Waiter, on_release: Callable[[Waiter], None]) -> None:
        self._waiter = waiter
        self._on_release = on_release

    @property
    def offset(self) -> int:
        """Bytes from the pool's start; a multiple of `pool.ALIGNMENT`."""
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


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Sizes in bytes, times in seconds; counts since the pool was created."""

    capacity: int
    leased: int
    peak: int
    """Largest number of bytes leased at the same time."""
    largest_free: int
    """Size of the largest free range; a larger lease has to wait, even if more is free in total."""
    waiting: int
    """Number of leases waiting now."""
    granted: int
    """Number of granted leases, including those that waited."""
    waited: int
    """Number of leases that waited, granted or not."""
    wait_s: float
    """Total time of ended waits."""
    longest_wait_s: float
    timeouts: int
    cancelled: int
    refused: int
    """Number of leases larger than the pool, beyond the queue limit, or after closing."""
    by_owner: Mapping[str, Held]
    """Owner to the leases that it holds now."""

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
