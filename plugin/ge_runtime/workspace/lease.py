"""The values of a workspace pool: who waits, what is leased, and what was counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType

from ge_runtime.memory.plan import aligned_columns


class Outcome(Enum):
    """Where a waiter stands. All but WAITING and GRANTED are final."""

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
    """One request for bytes of a pool, from asking until they are released.

    Only the pool's arbiter writes it. Compared by identity: two may ask for the same.
    """

    nbytes: int
    owner: str
    priority: int = 0
    deadline: float = math.inf
    """Seconds of the pool's clock."""
    outcome: Outcome = Outcome.WAITING
    offset: int = 0
    """Bytes from the pool's start, once granted."""
    asked_at: float = 0.0
    waited_s: float = 0.0
    bypassed: int = 0
    """How many came later and were granted before it."""


class Lease:
    """The bytes [offset, offset + nbytes) of a pool, until `release` or the end of `with`.

    Made by `WorkspacePool.lease`. Nobody else holds a byte of them meanwhile. Keep it as short as
    one execution, and hold one at a time: whoever holds a lease while waiting for another can
    wait for ever, because of somebody who does the same.
    """

    __slots__ = ("_give_back", "_waiter")

    def __init__(self, waiter: Waiter, give_back: Callable[[Waiter], None]) -> None:
        self._waiter = waiter
        self._give_back = give_back

    @property
    def offset(self) -> int:
        """Bytes from the pool's start; a multiple of `pool.ALIGNMENT`."""
        return self._waiter.offset

    @property
    def nbytes(self) -> int:
        """What was asked for."""
        return self._waiter.nbytes

    @property
    def owner(self) -> str:
        """Who asked, for people."""
        return self._waiter.owner

    @property
    def waited_s(self) -> float:
        """Seconds from asking to granting; exactly 0 if the bytes were free."""
        return self._waiter.waited_s

    def release(self) -> None:
        """Give the bytes back. Never blocks for long; again does nothing; from any thread."""
        self._give_back(self._waiter)

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
    """What one owner holds. An owner that does nothing and holds something leaks."""

    leases: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Sizes in bytes, times in seconds; counts since the pool was made."""

    capacity: int
    leased: int
    peak: int
    """The most that was ever leased at once."""
    largest_free: int
    """A larger lease has to wait, even if more is free in all."""
    waiting: int
    """Leases that are waited for now."""
    granted: int
    """Leases, those that waited included."""
    waited: int
    """Leases that had to be waited for, however that ended."""
    wait_s: float
    """Of waits that ended, in all."""
    longest_wait_s: float
    timeouts: int
    cancelled: int
    refused: int
    """Those that never could fit, found the queue full, or met a closed pool."""
    by_owner: Mapping[str, Held]
    """Who holds something now."""

    def table(self) -> list[str]:
        """All of it for people, one line each."""
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
        waits = f"for {self.wait_s:.3f} s in all, {self.longest_wait_s:.3f} s at most"
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
