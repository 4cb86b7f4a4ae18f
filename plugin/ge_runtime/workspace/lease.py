"""What is asked of a pool (`Claim`), and what its user holds in the end (`Lease`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType


class Outcome(Enum):
    """Where a claim stands. All but WAITING and GRANTED are final."""

    WAITING = auto()
    GRANTED = auto()
    RELEASED = auto()
    TIMED_OUT = auto()
    CANCELLED = auto()
    FULL = auto()
    NEVER_FITS = auto()
    CLOSED = auto()


@dataclass(slots=True, eq=False)
class Claim:
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
    overtaken: int = 0
    """Claims that came later and were granted before it."""


class Lease:
    """The bytes [offset, offset + nbytes) of a pool, until `release` or the end of `with`.

    Made by `WorkspacePool.lease`. Nobody else holds a byte of them meanwhile. Keep it as short as
    one execution, and hold one at a time: whoever holds a lease while waiting for another can
    wait for ever, because of somebody who does the same.
    """

    __slots__ = ("_claim", "_give_back")

    def __init__(self, claim: Claim, give_back: Callable[[Claim], None]) -> None:
        self._claim = claim
        self._give_back = give_back

    @property
    def offset(self) -> int:
        """Bytes from the pool's start; a multiple of `pool.ALIGNMENT`."""
        return self._claim.offset

    @property
    def nbytes(self) -> int:
        """What was asked for."""
        return self._claim.nbytes

    @property
    def owner(self) -> str:
        """Who asked, for people."""
        return self._claim.owner

    @property
    def waited_s(self) -> float:
        """Seconds from asking to granting; exactly 0 if the bytes were free."""
        return self._claim.waited_s

    def release(self) -> None:
        """Give the bytes back. Never blocks for long; again does nothing; from any thread."""
        self._give_back(self._claim)

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
        claim = self._claim
        state = "held" if claim.outcome is Outcome.GRANTED else "released"
        end = claim.offset + claim.nbytes
        return f"<Lease of {claim.owner}: bytes {claim.offset:,} to {end:,}, {state}>"
