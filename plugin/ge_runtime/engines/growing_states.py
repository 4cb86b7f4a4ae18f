"""States of sequences that grow along PAST: their tensors, and the memory that they need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ge_runtime.batching.ragged import Geometry
from ge_runtime.config.sequence_states import BLOCK
from ge_runtime.memory.plan import ALIGNMENT
from ge_runtime.specs import PAST, TensorSpec


@dataclass(frozen=True, slots=True)
class GrowingState:
    """A graph input that grows along PAST, and the result that becomes its next value."""

    spec: TensorSpec
    """The input. Its dims are PAST, once, and fixed sizes."""
    result: TensorSpec
    """The output. Along PAST it has the size after the request."""
    at: int = 0
    """The dim of both tensors that counts rows."""

    @property
    def past_at(self) -> int:
        """The index of PAST in the dims of one row."""
        return self.spec.dims.index(PAST)

    def blocks_shape(self, count: int) -> tuple[int, ...]:
        """Return the shape of all blocks."""
        return count, *self.spec.shape({PAST: BLOCK})


def pool_bytes(states: Sequence[GrowingState], count: int) -> int:
    """Return the size of all blocks of a model in bytes."""
    return sum(
        aligned(math.prod(state.blocks_shape(count)) * state.spec.dtype.numpy.itemsize)
        for state in states
    )


def group_places(
    states: Sequence[GrowingState], geometries: Sequence[Geometry]
) -> tuple[list[int], int]:
    """Return the offset of each state in a buffer of an executor's group, and the buffer's bytes.

    Args:
        states: The states.
        geometries: The largest executions. Results are larger than inputs.
    """
    places, used = [], 0
    for state in states:
        places.append(used)
        largest = max(math.prod(geometry.shape(state.result)) for geometry in geometries)
        used += aligned(largest * state.spec.dtype.numpy.itemsize)
    return places, used


def aligned(nbytes: int) -> int:
    """Return the bytes rounded up to ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
