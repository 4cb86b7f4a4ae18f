"""What is asked of a pool (`Waiter`), and what its user holds in the end (`Lease`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType


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
    """Somebody's wish for bytes of a pool. Only the pool's arbiter writes it."""

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
    """Waiters that came later and were granted before it."""


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
