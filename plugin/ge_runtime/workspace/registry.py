"""One workspace pool per device and process, whoever of its models comes first."""

from __future__ import annotations

from threading import Lock
from typing import Final

from ge_runtime.clock import Clock, SystemClock
from ge_runtime.errors import ConfigFault
from ge_runtime.workspace.pool import WorkspacePool

QUEUE_LIMIT: Final = 256
"""Waiters, each of which is a thread of this process. Only a defect has more."""


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
