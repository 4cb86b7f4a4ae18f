"""Planned memory in use: arenas that tensors are carved out of, and the slots of answers."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
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


class AnswerSlots:
    """Memory for answers: written by one batch, and by no other while anyone reads it.

    An answer is a view of the slot that its batch was executed into. A slot is used again when the
    last such view is gone: nobody has to give it back, and the server may take its time to send.
    Safe from any thread.
    """

    def __init__(self, slots: Sequence[Array]) -> None:
        """slots: at least one, each uint8 [bytes] of one size, from a multiple of ALIGNMENT on.

        Three are enough where answers are sent while the next batch runs: one is written, one is
        sent, one is between.
        """
        self._count = len(slots)
        self._nbytes = len(slots[0])
        # Without a lock: answers die on any thread and, in garbage collection, in the middle of
        # anything, such as `take`. The slot that was used last is taken first, for the caches.
        self._free = deque(slots)
        self._lock = threading.Lock()
        self._spilled = 0  # guarded by the lock
        self.poison: int | None = None
        """`Arena.poison` of the arenas taken from now on."""

    def take(self) -> Arena:
        """A slot for one batch, all of it free to carve. Never blocks.

        It is used again once the arena and all arrays made of its tensors are gone, views of
        views included. If no slot is free, it is new memory of the same size for this one batch.
        Raises PlanFault if that cannot be had.
        """
        # `asarray` reads __array_interface__: the array's base is the lease, which ends with the
        # last array that is made from it.
        try:
            memory = np.asarray(_SlotLease(self._free.pop(), self._give_back))
        except IndexError:
            memory = self._spill()
        arena = Arena(memory, "answers")
        arena.poison = self.poison
        return arena

    def close(self) -> None:
        """Let go of the memory: of each slot as soon as nobody uses it. Safe to call twice."""
        self._free = deque(maxlen=0)  # keeps nothing of what is given back

    def _give_back(self, memory: Array) -> None:
        self._free.append(memory)

    def _spill(self) -> Array:
        with self._lock:
            self._spilled += 1
        return aligned_bytes(self._nbytes)

    @property
    def free(self) -> int:
        """The slots that nobody uses."""
        return len(self._free)

    @property
    def spilled(self) -> int:
        """How often no slot was free, and memory was allocated instead."""
        return self._spilled

    def __repr__(self) -> str:
        return (
            f"<AnswerSlots: {self.free} of {self._count} free, {self._nbytes:,} bytes each, "
            f"spilled {self._spilled} time(s)>"
        )


class _SlotLease:
    """Memory on loan to the arrays made from it: each keeps it alive as the base of its bases.

    NumPy replaces the base of a view by that base's own base as long as both are arrays. This is
    no array, so there it ends: a mere view of the slot would be skipped, and die too early.
    """

    __slots__ = ("__array_interface__", "_give_back", "_memory")

    def __init__(self, memory: Array, give_back: Callable[[Array], None]) -> None:
        self._memory = memory
        self._give_back = give_back
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._give_back(self._memory)
