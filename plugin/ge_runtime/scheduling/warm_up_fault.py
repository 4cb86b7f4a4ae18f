"""The error of a failed warm-up: the size tried, and the parameters with which it succeeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ge_runtime.batching.gears import Gear
from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory, RuntimeFault

_MOST_EXECUTIONS: Final = 64
"""Maximum number of executions in the search for a size."""


def warm_up_fault(
    fault: RuntimeFault, gear: Gear, config: RuntimeConfig, execute: Callable[[Gear], object]
) -> ArtifactFault:
    """Return the error of a warm-up, with parameters that were tried successfully, if any.

    Args:
        fault: The fault of the execution that failed.
        gear: The size of that execution.
        config: The model.
        execute: Executes generated rows at a size.
    """
    found = f"the graph fails in its warm-up: found a failed execution of {gear}, expected "
    if isinstance(fault, OutOfMemory):
        return ArtifactFault(f"{found}enough memory. Lower a limit or max_batch_size. {fault}")
    left = _MOST_EXECUTIONS

    def works(rows: int, extents: Mapping[str, int]) -> bool:
        nonlocal left
        left -= 1
        try:
            if left >= 0:
                execute(Gear(rows, extents))
        except (EngineFault, OutOfMemory):
            return False
        return left >= 0

    if gear.rows > 1 and works(1, gear.extents):
        found += "a size that the graph executes. It executes 1 row: set 'gears.batch: 1'. "
    elif sizes := _smallest_working(gear, config, works):
        settings = " and ".join(f"'min.{axis}: {size}'" for axis, size in sizes.items())
        found += f"a size that the graph executes. Set {settings}, the smallest size that works. "
    elif config.gears:
        keys = ", ".join(f"'gears.{','.join(axes)}'" for axes in config.gears)
        found += f"a size that the graph executes. Remove or change this gear in {keys}. "
    else:
        found += (
            "a size that the graph executes. No size works: give the values that the graph "
            "accepts (range.<input>), or set 'warmup: none' and 'cost'. "
        )
    return ArtifactFault(f"{found}The failure was: {fault}")


def _smallest_working(
    gear: Gear, config: RuntimeConfig, works: Callable[[int, Mapping[str, int]], bool]
) -> dict[str, int]:
    """Return the smallest sizes above those of `gear`, along axes without gears, that work.

    Empty if there are none. A size is assumed to work if a smaller size works.
    """
    geared = {axis for axes in config.gears for axis in axes}
    executed = config.axis_sizes.executed
    limits = {axis: limit for axis, limit in config.limits.items() if axis not in geared}
    sizes = dict(gear.extents)
    while True:
        larger = {
            axis: min(limit, executed(axis, 2 * sizes[axis])) for axis, limit in limits.items()
        }
        if larger.items() <= sizes.items():
            return {}
        sizes |= larger
        if works(gear.rows, sizes):
            break
    for axis in limits:
        # `low` and `high` are numbers of steps. `low` is one below the size of `gear`, which may
        # work for this axis, as the other axes are larger now.
        step = config.axis_sizes.steps[axis]
        low, high = gear.extents[axis] // step - 1, sizes[axis] // step
        while high - low > 1:
            middle = (low + high) // 2
            if works(gear.rows, {**sizes, axis: middle * step}):
                high = middle
            else:
                low = middle
        sizes[axis] = high * step
    return {axis: sizes[axis] for axis in limits if sizes[axis] > gear.extents[axis]}
