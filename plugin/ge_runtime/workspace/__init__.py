"""Workspace pools: memory shared by models that do not need it at the same time.

A pool is one range of bytes of a device. `arbiter` makes the decisions. `WorkspacePool` adds locks,
waiting and exceptions. `PoolRegistry` creates the pool of a device for its first model, and closes
it after the last.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from threading import Condition, Lock
from typing import Final

from ge_runtime.clock import Clock, SystemClock
from ge_runtime.errors import ConfigFault, NeverFits, PoolClosed, PoolFault, PoolFull, PoolTimeout
from ge_runtime.workspace.arbiter import Arbiter, Held, Lease, Outcome, PoolStats, Waiter

__all__ = [
    "PROCESS_POOLS",
    "Held",
    "Lease",
    "Membership",
    "PoolRegistry",
    "PoolStats",
    "WorkspacePool",
]


ALIGNMENT: Final = 512
"""Bytes. The alignment of Ascend's graph engine; CUDA and CPUs need less."""

QUEUE_LIMIT: Final = 256
"""Largest number of waiters. Each is a thread of this process, so more of them are a defect."""

_REFUSALS: Final[Mapping[Outcome, tuple[type[PoolFault], str]]] = {
    Outcome.NEVER_FITS: (
        NeverFits,
        "found {waiter.nbytes:,} bytes wanted, expected at most {pool.capacity_bytes:,}, "
        "the pool's capacity",
    ),
    Outcome.FULL: (
        PoolFull,
        "found {pool.queue_limit} leases waiting, expected fewer: that is the limit (queue_limit)",
    ),
    Outcome.TIMED_OUT: (
        PoolTimeout,
        "found less than {waiter.nbytes:,} bytes free for {waiter.waited_s:.3f} s, expected more "
        "before the deadline",
    ),
    Outcome.CLOSED: (PoolClosed, "found the pool closed, expected it open"),
}

_log = logging.getLogger(__name__)


class WorkspacePool:
    """Leases of the bytes [0, capacity), for executions that share one workspace.

    The pool handles numbers only: its user adds offsets to the address of the device memory.
    Waiters are served in the order that `arbiter` describes. Safe from any thread.
    """

    def __init__(
        self, capacity_bytes: int, clock: Clock, *, queue_limit: int, name: str = "workspace"
    ) -> None:
        """Create a pool.

        Args:
            capacity_bytes: At least 1.
            clock: The clock of deadlines.
            queue_limit: Largest number of waiters; more are refused.
            name: The name in messages.
        """
        self.capacity_bytes = capacity_bytes
        self.queue_limit = queue_limit
        self._name = name
        self._clock = clock
        self._arbiter = Arbiter(capacity_bytes, alignment=ALIGNMENT, queue_limit=queue_limit)
        self._lock = Lock()  # guards the arbiter, its waiters and their conditions
        # One condition for each waiter, so that only threads whose wait has ended are woken.
        self._conditions: dict[Waiter, Condition] = {}
        self._returned = Condition(self._lock)  # notified when a closed pool has no leases left

    def lease(self, nbytes: int, *, deadline: float = math.inf, owner: str) -> Lease:
        """Lease memory. Blocks until it is granted. Safe from any thread.

        After an exception nothing stays leased or queued.

        Args:
            nbytes: 0 or more.
            deadline: Seconds on the pool's clock.
            owner: The name in messages and statistics.

        Returns:
            The lease, to be released by the caller.

        Raises:
            NeverFits: `nbytes` exceeds the capacity.
            PoolFull: The queue limit is reached.
            PoolTimeout: The deadline passed.
            PoolClosed: The pool is closed, or was closed during the wait.
            ValueError: `nbytes` is negative.
        """
        if nbytes < 0:
            raise ValueError(f"{owner}: found {nbytes} bytes, expected 0 or more")
        waiter = Waiter(nbytes, owner, deadline)
        condition = None
        with self._lock:
            self._notify(self._arbiter.request(waiter, self._clock.now()))
            if waiter.outcome is Outcome.WAITING:
                condition = self._conditions[waiter] = Condition(self._lock)
        if condition is not None:
            self._wait(waiter, condition)
        if waiter.outcome is not Outcome.GRANTED:
            raise self._refusal(waiter)
        return Lease(waiter, self._release)

    def require(self, nbytes: int, owner: str) -> None:
        """Raise NeverFits if a lease of `nbytes` can never be granted. For use at load."""
        if nbytes > self.capacity_bytes:
            raise self._refusal(Waiter(nbytes, owner, outcome=Outcome.NEVER_FITS))

    def stats(self) -> PoolStats:
        """Return a consistent snapshot of the statistics."""
        with self._lock:
            return self._arbiter.stats()

    def close(self, wait_s: float = 0.0) -> bool:
        """Refuse all waiters, present and future, then wait until all leases are released.

        Safe to call twice.

        Args:
            wait_s: Longest time to wait, in seconds.

        Returns:
            True if all leases were released. If not, the log names the owners; their leases stay
            valid until they are released.
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

    def _wait(self, waiter: Waiter, condition: Condition) -> None:
        try:
            with self._lock:
                while waiter.outcome is Outcome.WAITING:
                    now = self._clock.now()
                    if waiter.deadline <= now:
                        self._notify(self._arbiter.expire(now))
                    else:
                        self._clock.wait(condition, waiter.deadline)
        except BaseException:  # an interrupt: the lease has no holder
            with self._lock:
                self._notify(self._arbiter.withdraw(waiter, self._clock.now()))
                self._note_return()
            raise

    def _release(self, waiter: Waiter) -> None:
        with self._lock:
            self._notify(self._arbiter.release(waiter, self._clock.now()))
            self._note_return()

    def _notify(self, ended: Iterable[Waiter]) -> None:
        for waiter in ended:
            # None if the wait ended before the thread created a condition.
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
    """A model's share in a pool, until `leave`. Created by `PoolRegistry.join`."""

    def __init__(
        self, registry: PoolRegistry, pool: WorkspacePool, device: str, model: str
    ) -> None:
        self.pool = pool
        self.device = device
        self.model = model
        self._registry = registry

    def leave(self) -> None:
        """Stop using the pool; the last member closes it. Safe to call twice."""
        self._registry._leave(self)

    def __repr__(self) -> str:
        return f"<Membership of {self.model} in {self.pool!r}>"


class PoolRegistry:
    """The pools of a process, by device. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._members: dict[str, list[Membership]] = {}  # the members of each device's pool
        self._lock = Lock()

    def join(self, device: str, capacity_bytes: int, model: str) -> Membership:
        """Join the pool of a device, which is created for its first model.

        Args:
            device: The device.
            capacity_bytes: The capacity that the model requires.
            model: The model, or an instance of it, for messages.

        Raises:
            ConfigFault: Other models share a pool of another capacity; the message names them.
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
        # Without the lock, as the pool is not in the registry any more.
        membership.pool.close()


def _conflict(found: int, members: list[Membership]) -> str:
    models = ", ".join(sorted({f"'{member.model}'" for member in members}))
    pool = members[0].pool.capacity_bytes
    return (
        f"parameter 'workspace_pool_mib': found {found / 2**20:g}, expected {pool / 2**20:g}: "
        f"device '{members[0].device}' has one pool in this process, which has that capacity for "
        f"{models}"
    )


PROCESS_POOLS: Final = PoolRegistry(SystemClock())
"""The registry of this process."""
