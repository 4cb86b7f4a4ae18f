"""Memory for tensors that lie where the device service cannot see them. The client's side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Buffer
from ge_runtime.memory.arena import Arena
from ge_runtime.service.arenas import ALIGNMENT, SharedMemory
from ge_runtime.specs import Array

_MOST_SPARE: Final = ALIGNMENT
"""Bytes beyond its own that a tensor takes, for where it may begin."""


class Staging:
    """One buffer, for one execution at a time. Not thread-safe."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._buffer: Buffer[NDArray[np.uint8]] | None = None

    def reserve(self, nbytes: int, tensors: int) -> None:
        """Have room for so many tensors of so many bytes in all. Raises OutOfMemory."""
        nbytes += tensors * _MOST_SPARE
        if self._buffer is not None:
            if nbytes <= self._buffer.nbytes:
                return
            buffer, self._buffer = self._buffer, None
            buffer.free()
        self._buffer = self._memory.allocate("staging", nbytes)

    def visible(self, arrays: Sequence[Array]) -> list[Array]:
        """For each array itself, if the service sees it; else one like it that the service sees.

        The others are valid until the next call; what they contain is undefined.
        Raises OutOfMemory.
        """
        hidden = [self._memory.spot(array) is None for array in arrays]
        nbytes = sum(array.nbytes for array in compress(arrays, hidden))
        if self._buffer is None or self._buffer.nbytes < nbytes + sum(hidden) * _MOST_SPARE:
            self.reserve(1 << nbytes.bit_length(), sum(hidden))
        assert self._buffer is not None, "it has just been reserved"
        arena = Arena(self._buffer.memory, "staging")
        return [
            arena.carve(array.dtype, array.shape) if is_hidden else array
            for array, is_hidden in zip(arrays, hidden, strict=True)
        ]
