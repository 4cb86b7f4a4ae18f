"""Workspace of executions from a pool that models share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ge_runtime.batching.gears import Gear
from ge_runtime.memory.plan import Plan
from ge_runtime.metrics import Counts, Metrics
from ge_runtime.specs import ROWS
from ge_runtime.workspace.lease import Lease
from ge_runtime.workspace.pool import WorkspacePool


class Pooled:
    """See `request_batch.Workspace`: each execution leases what the plan says that it needs."""

    def __init__(self, pool: WorkspacePool, plan: Plan, owner: str, metrics: Metrics) -> None:
        self._pool = pool
        self._plan = plan
        self._owner = owner
        self._metrics = metrics

    @contextmanager
    def lease(self, gear: Gear, deadline: float) -> Iterator[Lease]:
        """See `request_batch.Workspace`; blocks until it is this execution's turn."""
        nbytes = self._plan.workspace_at({ROWS: gear.rows, **gear.extents})
        with self._pool.lease(nbytes, deadline=deadline, owner=self._owner) as lease:
            if lease.waited_s:
                waits = Counts(workspace_waits=1, workspace_wait_seconds=lease.waited_s)
                self._metrics.add(waits)
            yield lease
