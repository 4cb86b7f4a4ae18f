"""What executions really take of workspace, measured at load with few rows of each gear.

A graph's own results are not what its engine allocates: kernels that were fused need less, layouts
of their own and scratch more. The share differs from gear to gear, and hardly with the rows. So
each gear is executed with a few rows, and what that took is scaled to all of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ge_runtime.batching.gears import Gear
from ge_runtime.engines.base import WorkspaceArena
from ge_runtime.errors import EngineFault, OutOfMemory
from ge_runtime.memory.plan import GearPlan, Plan

_ABOUT_BYTES: Final = 16 * 2**20
"""Workspace of an execution that is measured: large beside what does not grow with the rows, and
milliseconds to execute."""
_MOST_GEARS: Final = 16
"""That are measured, those that need most. Others keep what their graph needs."""


def measured(
    arena: WorkspaceArena, execute: Callable[[Gear], object], gears: Sequence[Gear], plan: Plan
) -> Plan:
    """The plan with what executions at these gears, which are the plan's, were measured to take.

    arena: where they take it. execute: executes once at a gear, with fewer rows perhaps.
    """
    largest = sorted(plan.gears, key=lambda gear: gear.workspace_bytes)[-_MOST_GEARS:]
    return plan.measured(
        [
            _measured(arena, execute, gear, planned) if planned in largest else None
            for gear, planned in zip(gears, plan.gears, strict=True)
        ]
    )


def _measured(
    arena: WorkspaceArena, execute: Callable[[Gear], object], gear: Gear, planned: GearPlan
) -> int | None:
    """The workspace of an execution at the gear; None if none of those tried succeeds."""
    for rows in _rows_to_try(gear, planned):
        smaller = Gear(rows, gear.extents)
        about_bytes = planned.workspace_bytes * rows // gear.rows
        try:
            found = arena.measure(lambda: execute(smaller), about_bytes)  # noqa: B023
        except (EngineFault, OutOfMemory):  # e.g. of rows that the graph has fixed
            continue
        return None if found is None else found * gear.rows // rows
    return None


def _rows_to_try(gear: Gear, planned: GearPlan) -> Iterator[int]:
    per_row = max(1, planned.workspace_bytes // gear.rows)
    rows = max(1, min(gear.rows, _ABOUT_BYTES // per_row))
    yield rows
    if rows < gear.rows and planned.workspace_bytes <= 4 * _ABOUT_BYTES:
        yield gear.rows
