"""A memory plan bound to bytes: one arena per model instance, and views of it."""

from __future__ import annotations

import math

import numpy as np

from ge_runtime.errors import PlanFault
from ge_runtime.memory.plan import ALIGNMENT, MemoryPlan, Region
from ge_runtime.specs import Array


class PlannedBuffers:
    """One arena for all regions of a plan. Views share its bytes; nothing grows or is freed.

    Whoever asks for views decides when their content may be overwritten: there is no lock here.
    """

    def __init__(self, plan: MemoryPlan) -> None:
        """Allocates the arena. Raises PlanFault with the plan's table if it cannot be had."""
        try:
            raw = np.empty(plan.total_bytes + ALIGNMENT - 1, np.uint8)
        except (MemoryError, OverflowError, ValueError) as error:
            table = "\n".join(plan.table())
            raise PlanFault(f"the planned memory cannot be allocated:\n{table}") from error
        start = -raw.ctypes.data % ALIGNMENT
        self._arena = raw[start : start + plan.total_bytes]
        self.plan = plan

    def view(self, region: Region, shape: tuple[int, ...]) -> Array:
        """A C-contiguous array of exactly `shape` at the start of the region, not cleared.

        Allocates no tensor memory. Raises PlanFault if `shape` needs more than was planned.
        """
        dtype = region.dtype.numpy
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > region.nbytes:
            raise PlanFault(
                f"{region.label}: found shape {list(shape)} of {nbytes} bytes, "
                f"expected at most {list(region.shape)} of {region.nbytes} bytes"
            )
        return self._arena[region.offset : region.offset + nbytes].view(dtype).reshape(shape)
