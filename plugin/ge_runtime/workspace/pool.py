"""One range of workspace that the models of a process and device take turns in.

The decisions are `arbiter`'s; this is the shell that locks, blocks, wakes and raises.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from threading import Condition, Lock
from typing import Final

from ge_runtime.clock import Clock
from ge_runtime.errors import (
    NeverFits,
    PoolCancelled,
    PoolClosed,
    PoolFault,
    PoolFull,
    PoolTimeout,
)
from ge_runtime.workspace.arbiter import Arbiter
from ge_runtime.workspace.lease import Claim, Lease, Outcome
from ge_runtime.workspace.stats import PoolStats

ALIGNMENT: Final = 512
"""Bytes. What Ascend's graph engine keeps for its own memory; more than CUDA and CPUs ask for."""

OVERTAKINGS: Final = 16
"""How often a waiting claim may be overtaken by higher priorities that came later."""

CANCELLATION_POLL_S: Final = 0.01
"""How often a waiter asks whether it is cancelled: servers can be asked, but do not call."""

_REFUSALS: Final[Mapping[Outcome, tuple[type[PoolFault], str]]] = {
    Outcome.NEVER_FITS: (
        NeverFits,
        "found {claim.nbytes:,} bytes wanted, expected at most {pool.capacity_bytes:,}, "
        "the pool's capacity",
    ),
    Outcome.FULL: (
        PoolFull,
        "found no place to wait, expected one of the {pool.queue_limit} that there are "
        "(queue_limit)",
    ),
    Outcome.TIMED_OUT: (
        PoolTimeout,
        "found less than {claim.nbytes:,} bytes free for {claim.waited_s:.3f} s, expected them "
        "before the deadline",
    ),
    Outcome.CANCELLED: (
        PoolCancelled,
        "found its claim to {claim.nbytes:,} bytes cancelled after {claim.waited_s:.3f} s",
    ),
    Outcome.CLOSED: (PoolClosed, "found the pool closed, expected it open"),
}

_log = logging.getLogger(__name__)


class WorkspacePool:
    """Leases of the bytes [0, capacity), for executions that share one workspace.

    Numbers only: whoever owns the device's memory adds offsets to its address. Claims are served
    in the order that `arbiter` describes. Safe from any thread.
    """

    def __init__(
        self,
        capacity_bytes: int,
        clock: Clock,
        *,
        queue_limit: int,
        name: str = "workspace",
    ) -> None:
        """capacity_bytes: at least 1. queue_limit: how many claims may wait; one more is refused.

        name: for people.
        """
        self.capacity_bytes = capacity_bytes
        self.queue_limit = queue_limit
        self._name = name
        self._clock = clock
        self._arbiter = Arbiter(
            capacity_bytes,
            alignment=ALIGNMENT,
            queue_limit=queue_limit,
            overtakings=OVERTAKINGS,
        )
        self._lock = Lock()  # guards the arbiter, its claims and the bells
        self._bells: dict[Claim, Condition] = {}  # one for each claim that waits
        self._returned = Condition(self._lock)  # rung when a closed pool has all leases back

    def lease(
        self,
        nbytes: int,
        *,
        priority: int = 0,
        deadline: float = math.inf,
        owner: str,
        cancelled: Callable[[], bool] | None = None,
    ) -> Lease:
        """A lease of `nbytes` (0 or more); blocks until it is this claim's turn and they are free.

        priority: higher goes first. deadline: seconds of the pool's clock. owner: who asks, for
        people. cancelled: asked in this thread once it has to wait: then, every 10 ms, and before
        the lease is returned; no lock is held. An Event's `is_set` will do.

        Raises NeverFits, PoolFull or PoolClosed at once, PoolTimeout at the deadline, PoolCancelled
        once `cancelled` is true, PoolClosed when the pool closes meanwhile; ValueError for
        negative sizes. Whatever is raised, nothing stays leased or queued.
        """
        if nbytes < 0:
            raise ValueError(f"{owner}: found {nbytes} bytes, expected 0 or more")
        claim = Claim(nbytes, owner, priority, deadline)
        bell = None
        with self._lock:
            self._ring(self._arbiter.ask(claim, self._clock.now()))
            if claim.outcome is Outcome.WAITING:
                bell = self._bells[claim] = Condition(self._lock)
        if bell is not None:
            self._wait(claim, bell, cancelled)
        if claim.outcome is not Outcome.GRANTED:
            raise self._refusal(claim)
        return Lease(claim, self._release)

    def require(self, nbytes: int, owner: str) -> None:
        """Raise NeverFits if no lease of `nbytes` can ever be granted. For use at load."""
        if nbytes > self.capacity_bytes:
            raise self._refusal(Claim(nbytes, owner, outcome=Outcome.NEVER_FITS))

    def stats(self) -> PoolStats:
        """Use, waits and refusals at one moment."""
        with self._lock:
            return self._arbiter.stats()

    def close(self, wait_s: float = 0.0) -> bool:
        """Refuse whoever waits or comes, then wait up to `wait_s` seconds for live leases.

        Returns whether all came back. If not, the log names the holders; what they hold stays
        theirs until they release it. Safe to call twice.
        """
        with self._lock:
            until = self._clock.now() + wait_s
            self._ring(self._arbiter.close(self._clock.now()))
            while not self._arbiter.idle and self._clock.now() < until:
                self._clock.wait(self._returned, until)
            if self._arbiter.idle:
                return True
            held = self._arbiter.stats().by_owner
        holders = ", ".join(f"{owner} ({share.nbytes:,} bytes)" for owner, share in held.items())
        _log.warning("%s: closed while leases are held by %s", self._name, holders)
        return False

    def _wait(self, claim: Claim, bell: Condition, cancelled: Callable[[], bool] | None) -> None:
        """Block until the claim waits no more."""
        try:
            while True:
                if cancelled is not None and cancelled():
                    self._withdraw(claim)
                if claim.outcome is not Outcome.WAITING:
                    return
                with self._lock:
                    now = self._clock.now()
                    if claim.deadline <= now:
                        self._ring(self._arbiter.expire(now))
                    elif claim.outcome is Outcome.WAITING:
                        poll = math.inf if cancelled is None else now + CANCELLATION_POLL_S
                        self._clock.wait(bell, min(claim.deadline, poll))
        except BaseException:  # an interrupt, or `cancelled` raised: nobody is left to hold it
            self._withdraw(claim)
            raise

    def _withdraw(self, claim: Claim) -> None:
        with self._lock:
            self._ring(self._arbiter.withdraw(claim, self._clock.now()))
            self._note_return()

    def _release(self, claim: Claim) -> None:
        with self._lock:
            self._ring(self._arbiter.release(claim, self._clock.now()))
            self._note_return()

    def _ring(self, settled: Iterable[Claim]) -> None:
        for claim in settled:
            # None if it was settled before it began to wait.
            if (bell := self._bells.pop(claim, None)) is not None:
                bell.notify()

    def _note_return(self) -> None:
        if self._arbiter.closed and self._arbiter.idle:
            self._returned.notify_all()

    def _refusal(self, claim: Claim) -> PoolFault:
        fault, text = _REFUSALS[claim.outcome]
        return fault(f"{self._name}: {claim.owner}: " + text.format(claim=claim, pool=self))

    def __repr__(self) -> str:
        stats, state = self.stats(), "closed" if self._arbiter.closed else "open"
        leases = sum(held.leases for held in stats.by_owner.values())
        return (
            f"<WorkspacePool {self._name}: {state}, {stats.leased:,} of {stats.capacity:,} bytes "
            f"in {leases} lease(s), {stats.waiting} waiting>"
        )
