"""Planned memory in use: arenas from which tensors are carved, and slots for answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from ge_runtime.errors import PlanFault
from ge_runtime.memory.plan import ALIGNMENT
from ge_runtime.specs import Array


def aligned_bytes(nbytes: int) -> Array:
    """Allocate memory, uint8 [nbytes], that starts at a multiple of ALIGNMENT.

    The memory is reserved but not touched: the operating system provides pages on first access.

    Raises:
        PlanFault: The allocation failed.
    """
    try:
        raw = np.empty(nbytes + ALIGNMENT - 1, np.uint8)
    except (MemoryError, OverflowError, ValueError) as error:
        raise PlanFault(f"found no memory for {nbytes:,} bytes") from error
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


class Arena:
    """Carves tensors that do not overlap from given memory. For one thread at a time.

    Allocates no memory. The caller of `reset` makes sure that the tensors have no more readers.
    """

    def __init__(self, memory: Array, label: str) -> None:
        """Carve from `memory`.

        Args:
            memory: uint8 [bytes] that starts at a multiple of ALIGNMENT. Its tensors keep it alive.
            label: The name in messages.
        """
        self._memory = memory
        self._label = label
        self.used_bytes = 0
        """Carved bytes, alignment included."""
        self.poison: int | None = None
        """For tests: the byte with which carved tensors are filled, so that memory that is never
        written becomes visible; None leaves it unchanged."""

    def carve(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return the next tensor: C-contiguous, writeable, aligned to ALIGNMENT, not cleared.

        Args:
            dtype: A type of fixed size, not object.
            shape: The shape.

        Raises:
            PlanFault: The tensor is larger than the rest of the planned memory.
        """
        start = -(-self.used_bytes // ALIGNMENT) * ALIGNMENT
        end = start + math.prod(shape) * dtype.itemsize
        if end > len(self._memory):
            raise PlanFault(
                f"{self._label}: found shape {list(shape)} of {end - start:,} bytes, expected at "
                f"most {max(0, len(self._memory) - start):,}, the rest of the planned memory"
            )
        self.used_bytes = end
        if self.poison is not None:
            self._memory[start:end].fill(self.poison)
        # One call in place of a slice, a view and a reshape.
        return np.ndarray(shape, dtype, self._memory, start)

    def reset(self, used_bytes: int = 0) -> None:
        """Reuse the memory from `used_bytes` on, an earlier value of the attribute."""
        self.used_bytes = used_bytes

    def close(self) -> None:
        """Release the memory; nothing more can be carved. Safe to call twice."""
        self._memory = np.empty(0, np.uint8)

    @property
    def free_bytes(self) -> int:
        """Remaining bytes, alignment included."""
        return len(self._memory) - self.used_bytes

    def __repr__(self) -> str:
        return f"<Arena {self._label}: {self.used_bytes:,} of {len(self._memory):,} bytes carved>"


class AnswerSlots:
    """Memory for answers: each slot is written by one batch and reused when it has no readers.

    An answer is a view of the slot into which its batch was executed. A slot is free when nothing
    else refers to its array, so nothing has to be returned explicitly, and the server may send
    answers at any time. Safe from any thread.
    """

    def __init__(self, slots: Sequence[Array]) -> None:
        """slots: at least one, each uint8 of the same size that starts at a multiple of ALIGNMENT.

        Three are enough if answers are sent while the next batch runs: one slot is written, one
        waits, and one is sent.
        """
        # `asarray` reads __array_interface__, so the base of the array is the _Slot.
        self._slots = [np.asarray(_Slot(memory)) for memory in slots]
        self._count = len(slots)
        self._nbytes = len(slots[0])
        self._lock = threading.Lock()
        self._spilled = 0  # guarded by the lock
        self._unread = getrefcount(self._slots[0])
        """The references to a free slot, as `getrefcount` counts them."""
        self.poison: int | None = None
        """`Arena.poison` of the arenas taken from now on."""

    def take(self) -> Arena:
        """Return an empty arena for one batch. Does not block.

        The slot is reused after the arena and all arrays made from its tensors, including views of
        views, are freed. If no slot is free, new memory of the same size is allocated for this
        batch.

        Raises:
            PlanFault: New memory could not be allocated.
        """
        with self._lock:  # until the arena refers to the slot
            for place in range(len(self._slots)):
                if getrefcount(self._slots[place]) == self._unread:
                    arena = Arena(self._slots[place], "answers")
                    break
            else:
                self._spilled += 1
                arena = Arena(aligned_bytes(self._nbytes), "answers")
        arena.poison = self.poison
        return arena

    def close(self) -> None:
        """Release the memory, each slot as soon as it is unused. Safe to call twice."""
        with self._lock:
            self._slots = []

    @property
    def free(self) -> int:
        """Number of unused slots."""
        places = range(len(self._slots))
        return [getrefcount(self._slots[place]) for place in places].count(self._unread)

    @property
    def spilled(self) -> int:
        """Number of times that no slot was free and memory was allocated instead."""
        return self._spilled

    def __repr__(self) -> str:
        return (
            f"<AnswerSlots: {self.free} of {self._count} free, {self._nbytes:,} bytes each, "
            f"spilled {self._spilled} time(s)>"
        )


class _Slot:
    """The memory of a slot, as the base of the array from which answers are carved.

    NumPy replaces the base of a view by the base's own base while both are arrays. This object is
    not an array, so the chain ends at the slot's own array: each answer and each view of it refers
    to that array. If the slot were a plain view of the memory, its views would refer to the memory.
    """

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: Array) -> None:
        self._memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__
