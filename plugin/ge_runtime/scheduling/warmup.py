"""The first executions: engines prepare themselves, and the cost of executions is learned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from ge_runtime.batching.admission import Block
from ge_runtime.batching.calibration import calibrate
from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory
from ge_runtime.scheduling.executor import Executor
from ge_runtime.specs import UNKNOWN, Array, DType, TensorSpec

CALIBRATION_S: Final = 1.0
"""Spent on timing executions, where config.pbtxt does not say what they cost."""


def warm_up(
    executors: Sequence[Executor],
    config: RuntimeConfig,
    gears: Gears,
    terms: tuple[tuple[str, ...], ...],
) -> tuple[CostModel, str]:
    """Execute every gear once on each executor; what executions cost, and that in words.

    Where sizes are free there is no end of gears, and the smallest execution has to do. Rows are
    of zeros. Raises ArtifactFault if the graph cannot execute them.
    """
    first, *others = executors
    try:
        if config.warmup == "gears":
            _prepare(first, config, gears)
        if config.cost is None:
            calibration = calibrate(
                lambda gear: _execute(first, config, gear), gears, terms, budget_s=CALIBRATION_S
            )
            cost, told = calibration.cost, str(calibration)
        else:
            cost = CostModel(*config.cost, terms)
            told = f"{cost}, given by config.pbtxt"
        if config.warmup == "gears":
            for executor in others:
                _prepare(executor, config, gears)
    except (EngineFault, OutOfMemory) as fault:
        raise ArtifactFault(f"the graph fails when it is warmed up: {fault}") from fault
    return cost, told


def _prepare(executor: Executor, config: RuntimeConfig, gears: Gears) -> None:
    least = Gear(1, dict.fromkeys(gears.limits, 1))
    smallest = gears.fit(least.rows, least.extents) or least
    for gear in gears.every() if gears.fixed else (smallest,):
        _execute(executor, config, gear)


def _execute(executor: Executor, config: RuntimeConfig, gear: Gear) -> float:
    """Seconds that a full execution takes, gather and scatter included."""
    block = _blank(config, gear)
    start = time.perf_counter()
    executor.execute([block], gear)
    return time.perf_counter() - start


def _blank(config: RuntimeConfig, gear: Gear) -> Block:
    """Rows of zeros that fill the gear."""

    def zeros(spec: TensorSpec) -> Array:
        return np.zeros((gear.rows, *spec.shape(gear.extents)), spec.dtype.numpy)

    specs = {
        spec.name: spec
        for spec in config.sources
        # What is passed by the graph may be of any type and size.
        if spec.dtype is not DType.BYTES and UNKNOWN not in spec.dims
    }
    tensors = {name: zeros(spec) for name, spec in specs.items()}
    lengths = {}
    for axis, name in config.axis_lengths.items():
        lengths[axis] = [gear.extents[axis]] * gear.rows
        tensors[name][...] = min(gear.extents[axis], specs[name].dtype.largest)
    return Block(gear.rows, gear.extents, lengths, tensors, needs=gear.extents)
