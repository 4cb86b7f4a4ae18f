"""Workspace pools: one range of bytes for each device, which the models of a process share.

The decisions are `arbiter`'s. `WorkspacePool` is the shell that locks, blocks, wakes and raises;
`PoolRegistry` makes the pool of a device for the first of its models, and closes it after the last.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from threading import Condition, Lock
from typing import Final

from ge_runtime.clock import Clock, SystemClock
from ge_runtime.errors import (
    ConfigFault,
    NeverFits,
    PoolCancelled,
    PoolClosed,
    PoolFault,
    PoolFull,
    PoolTimeout,
)
from ge_runtime.workspace.arbiter import Arbiter
from ge_runtime.workspace.lease import Lease, Outcome, PoolStats, Waiter

ALIGNMENT: Final = 512
"""Bytes. What Ascend's graph engine keeps for its own memory; more than CUDA and CPUs ask for."""

BYPASS_LIMIT: Final = 16
"""How often a waiter may be bypassed by higher priorities that came later."""

QUEUE_LIMIT: Final = 256
"""Waiters, each of which is a thread of this process. Only a defect has more."""

CANCELLATION_POLL_S: Final = 0.01
"""How often a waiter asks whether it is cancelled: servers can be asked, but do not call."""

_REFUSALS: Final[Mapping[Outcome, tuple[type[PoolFault], str]]] = {
    Outcome.NEVER_FITS: (
        NeverFits,
        "found {waiter.nbytes:,} bytes wanted, expected at most {pool.capacity_bytes:,}, "
        "the pool's capacity",
    ),
    Outcome.FULL: (
        PoolFull,
        "found no place to wait, expected one of the {pool.queue_limit} that there are "
        "(queue_limit)",
    ),
    Outcome.TIMED_OUT: (
        PoolTimeout,
        "found less than {waiter.nbytes:,} bytes free for {waiter.waited_s:.3f} s, expected them "
        "before the deadline",
    ),
    Outcome.CANCELLED: (
        PoolCancelled,
        "found its claim to {waiter.nbytes:,} bytes cancelled after {waiter.waited_s:.3f} s",
    ),
    Outcome.CLOSED: (PoolClosed, "found the pool closed, expected it open"),
}

_log = logging.getLogger(__name__)


class WorkspacePool:
    """Leases of the bytes [0, capacity), for executions that share one workspace.

    Numbers only: whoever owns the device's memory adds offsets to its address. Waiters are served
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
        """capacity_bytes: at least 1. queue_limit: how many waiters may wait; one more is refused.

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
            bypass_limit=BYPASS_LIMIT,
        )
        self._lock = Lock()  # guards the arbiter, its waiters and their conditions
        # One condition for each that waits: only those whose waiting ended are woken.
        self._conditions: dict[Waiter, Condition] = {}
        self._returned = Condition(self._lock)  # notified when a closed pool has all leases back

    def lease(
        self,
        nbytes: int,
        *,
        priority: int = 0,
        deadline: float = math.inf,
        owner: str,
        cancelled: Callable[[], bool] | None = None,
    ) -> Lease:
        """A lease of `nbytes` (0 or more); blocks until it is this waiter's turn and they are free.

        priority: higher goes first. deadline: seconds of the pool's clock. owner: who asks, for
        people. cancelled: asked in this thread once it has to wait: then, every 10 ms, and before
        the lease is returned; no lock is held. An Event's `is_set` will do.

        Raises NeverFits, PoolFull or PoolClosed at once, PoolTimeout at the deadline, PoolCancelled
        once `cancelled` is true, PoolClosed when the pool closes meanwhile; ValueError for
        negative sizes. Whatever is raised, nothing stays leased or queued.
        """
        if nbytes < 0:
            raise ValueError(f"{owner}: found {nbytes} bytes, expected 0 or more")
        waiter = Waiter(nbytes, owner, priority, deadline)
        condition = None
        with self._lock:
            self._notify(self._arbiter.ask(waiter, self._clock.now()))
            if waiter.outcome is Outcome.WAITING:
                condition = self._conditions[waiter] = Condition(self._lock)
        if condition is not None:
            self._wait(waiter, condition, cancelled)
        if waiter.outcome is not Outcome.GRANTED:
            raise self._refusal(waiter)
        return Lease(waiter, self._release)

    def require(self, nbytes: int, owner: str) -> None:
        """Raise NeverFits if no lease of `nbytes` can ever be granted. For use at load."""
        if nbytes > self.capacity_bytes:
            raise self._refusal(Waiter(nbytes, owner, outcome=Outcome.NEVER_FITS))

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
            self._notify(self._arbiter.close(self._clock.now()))
            while not self._arbiter.idle and self._clock.now() < until:
                self._clock.wait(self._returned, until)
            if self._arbiter.idle:
                return True
            held = self._arbiter.stats().by_owner
        holders = ", ".join(f"{owner} ({share.nbytes:,} bytes)" for owner, share in held.items())
        _log.warning("%s: closed while leases are held by %s", self._name, holders)
        return False

    def _wait(
        self, waiter: Waiter, condition: Condition, cancelled: Callable[[], bool] | None
    ) -> None:
        """Block until the waiter waits no more."""
        try:
            while True:
                # Asked without the lock: it is the server's code, and may take its time.
                if cancelled is not None and cancelled():
                    self._withdraw(waiter)
                if waiter.outcome is not Outcome.WAITING:
                    return
                with self._lock:
                    now = self._clock.now()
                    if waiter.deadline <= now:
                        self._notify(self._arbiter.expire(now))
                    elif waiter.outcome is Outcome.WAITING:
                        poll = math.inf if cancelled is None else now + CANCELLATION_POLL_S
                        self._clock.wait(condition, min(waiter.deadline, poll))
        except BaseException:  # an interrupt, or `cancelled` raised: nobody is left to hold it
            self._withdraw(waiter)
            raise

    def _withdraw(self, waiter: Waiter) -> None:
        with self._lock:
            self._notify(self._arbiter.withdraw(waiter, self._clock.now()))
            self._note_return()

    def _release(self, waiter: Waiter) -> None:
        with self._lock:
            self._notify(self._arbiter.release(waiter, self._clock.now()))
            self._note_return()

    def _notify(self, ended: Iterable[Waiter]) -> None:
        for waiter in ended:
            # None if it ended before its thread began to wait.
            if (condition := self._conditions.pop(waiter, None)) is not None:
                condition.notify()

    def _note_return(self) -> None:
        if self._arbiter.closed and self._arbiter.idle:
            self._returned.notify_all()

    def _refusal(self, waiter: Waiter) -> PoolFault:
        fault, text = _REFUSALS[waiter.outcome]
        return fault(f"{self._name}: {waiter.owner}: " + text.format(waiter=waiter, pool=self))

    def __repr__(self) -> str:
        stats, state = self.stats(), "closed" if self._arbiter.closed else "open"
        leases = sum(held.leases for held in stats.by_owner.values())
        return (
            f"<WorkspacePool {self._name}: {state}, {stats.leased:,} of {stats.capacity:,} bytes "
            f"in {leases} lease(s), {stats.waiting} waiting>"
        )


class Membership:
    """A model's share in a pool, until `leave`. Made by `PoolRegistry.join`."""

    def __init__(
        self, registry: PoolRegistry, pool: WorkspacePool, device: str, model: str
    ) -> None:
        self.pool = pool
        self.device = device
        self.model = model
        self._registry = registry

    def leave(self) -> None:
        """Use the pool no more; the last one out closes it. Safe to call twice."""
        self._registry._leave(self)

    def __repr__(self) -> str:
        return f"<Membership of {self.model} in {self.pool!r}>"


class PoolRegistry:
    """The pools of a process, by device. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._members: dict[str, list[Membership]] = {}  # device -> its pool's, at least one
        self._lock = Lock()

    def join(self, device: str, capacity_bytes: int, model: str) -> Membership:
        """The device's pool for one more model, or instance of a model; made if there is none.

        Raises ConfigFault of `model` if others already share a pool of another capacity; the text
        names them.
        """
        with self._lock:
            members = self._members.get(device, [])
            if not members:
                name = f"workspace of {device}"
                pool = WorkspacePool(
                    capacity_bytes, self._clock, queue_limit=QUEUE_LIMIT, name=name
                )
            else:
                pool = members[0].pool
                if pool.capacity_bytes != capacity_bytes:
                    raise ConfigFault(model, [_conflict(capacity_bytes, members)])
            membership = Membership(self, pool, device, model)
            self._members[device] = [*members, membership]
            return membership

    def _leave(self, membership: Membership) -> None:
        with self._lock:
            members = self._members.get(membership.device, [])
            left = [member for member in members if member is not membership]
            if left:
                self._members[membership.device] = left
                return
            self._members.pop(membership.device, None)
        # Without the lock: nobody finds the pool any more.
        membership.pool.close()


def _conflict(found: int, members: list[Membership]) -> str:
    models = ", ".join(sorted({f"'{member.model}'" for member in members}))
    pool = members[0].pool.capacity_bytes
    return (
        f"parameter 'workspace_pool_mib': found {found / 2**20:g}, expected {pool / 2**20:g}: "
        f"device '{members[0].device}' has one pool in this process, and that is its capacity "
        f"for {models}"
    )


PROCESS_POOLS: Final = PoolRegistry(SystemClock())
"""The registry of this process."""
