"""Bytes that are had once, and tensors carved out of them one after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge_runtime.errors import PlanFault
from ge_runtime.memory.plan import ALIGNMENT
from ge_runtime.specs import Array


def aligned_bytes(nbytes: int) -> Array:
    """New memory, uint8 [nbytes], that starts at a multiple of ALIGNMENT.

    Reserved, not touched: the operating system provides pages as they are reached. Raises
    PlanFault if the memory cannot be had.
    """
    try:
        raw = np.empty(nbytes + ALIGNMENT - 1, np.uint8)
    except (MemoryError, OverflowError, ValueError) as error:
        raise PlanFault(f"found no memory for {nbytes:,} bytes") from error
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


class Arena:
    """Tensors in given memory, apart from each other, until `reset` begins anew.

    For one thread at a time. Allocates no tensor memory, and knows nothing of who still reads a
    tensor: whoever resets must.
    """

    def __init__(self, memory: Array, label: str) -> None:
        """memory: uint8 [bytes], from a multiple of ALIGNMENT on; kept alive by its tensors.

        label: for people, in faults.
        """
        self._memory = memory
        self._label = label
        self._used = 0
        self.poison: int | None = None
        """For tests: the byte that tensors are filled with as they are carved, None: they are not.
        What is then never written shows."""

    def carve(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """The next tensor: C-contiguous, writeable, from a multiple of ALIGNMENT on, not cleared.

        dtype: of fixed size, not object. Raises PlanFault if less than that was planned.
        """
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        end = start + math.prod(shape) * dtype.itemsize
        if end > len(self._memory):
            raise PlanFault(
                f"{self._label}: found shape {list(shape)} of {end - start:,} bytes, expected at "
                f"most {max(0, len(self._memory) - start):,}, the rest of what was planned"
            )
        self._used = end
        own = self._memory[start:end]
        if self.poison is not None:
            own.fill(self.poison)
        return own.view(dtype).reshape(shape)

    def reset(self, used_bytes: int = 0) -> None:
        """Carve from there again, over the tensors beyond; used_bytes: from an earlier moment."""
        self._used = used_bytes

    def close(self) -> None:
        """Let go of the memory; nothing more can be carved. Safe to call twice."""
        self._memory = np.empty(0, np.uint8)

    @property
    def free_bytes(self) -> int:
        """What is left, alignment included."""
        return len(self._memory) - self._used

    @property
    def used_bytes(self) -> int:
        """From the first byte carved to the last, alignment included."""
        return self._used

    def __repr__(self) -> str:
        return f"<Arena {self._label}: {self._used:,} of {len(self._memory):,} bytes carved>"
