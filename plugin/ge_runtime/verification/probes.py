"""Seeded requests of given sizes, whose values are from a part of the allowed range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import numpy as np

from ge_runtime.batching.admission import Block
from ge_runtime.config import RuntimeConfig
from ge_runtime.specs import UNKNOWN, Array, DType, Number, TensorSpec
from ge_runtime.verification.elements import element_ranges, nudged, random_elements

_DEVICE_INTEGERS: Final = (0.0, 2.0)
"""On devices, integers without `range.<input>` are 0 and 1. A larger index may lie outside a table
of the graph: a CPU engine raises an error, but some devices crash."""

_SHARED_SEED: Final = 4
"""Seed of inputs that have one value for the whole execution."""


class Part(Enum):
    """A part of a tensor's element range."""

    ALL = "all"
    LOWER = "lower half"
    UPPER = "upper half"
    CENTER = "a twentieth on each side of the middle"
    ENDS = "lowest and highest value"
    ONE = "one value in the middle, everywhere"


class Values:
    """Makes requests of seeded values: equal seeds give equal requests."""

    def __init__(self, config: RuntimeConfig, states: Sequence[TensorSpec] = ()) -> None:
        """Prepare for one model. `states` are the states of sequences, named by graph input.

        Raises:
            RuntimeFault: The type of a tensor cannot represent its range.
        """
        self._config = config
        self._states = states
        self._specs = [
            spec
            for spec in config.sources
            # An input that bypasses the graph may be of any type and size.
            if spec.dtype is not DType.BYTES and UNKNOWN not in spec.dims
        ]
        self._lengths = config.axis_lengths
        integers = None if config.device_kind == "cpu" else _DEVICE_INTEGERS
        self._ranges = element_ranges(config, (*self._specs, *states), integers=integers)

    def block(self, sizes: Mapping[str, int], seed: Sequence[int], part: Part = Part.ALL) -> Block:
        """Return a request of one row without padding, with values of a part of their ranges."""
        rng = np.random.default_rng(seed)
        tensors = {spec.name: self._tensor(spec, sizes, rng, part) for spec in self._specs}
        lengths = {axis: tensors[name].ravel().tolist() for axis, name in self._lengths.items()}
        executed = self._config.axis_sizes.executed
        needs = {axis: executed(axis, size) for axis, size in sizes.items()}
        states = {spec.name: self._tensor(spec, sizes, rng, part) for spec in self._states}
        return Block(1, sizes, lengths, tensors, needs, state=states or None)

    def _tensor(
        self, spec: TensorSpec, sizes: Mapping[str, int], rng: np.random.Generator, part: Part
    ) -> Array:
        shape = (1, *spec.shape(sizes))
        ends = [sizes[axis] for axis, name in self._lengths.items() if name == spec.name]
        if ends:
            return np.full(shape, min(*ends, spec.dtype.largest), spec.dtype.numpy)
        low, high = self._ranges[spec.name]
        if spec.name in self._config.batch_axes.without:
            # One value for all rows: requests with different values never share an execution.
            shared = np.random.default_rng(_SHARED_SEED)
            return random_elements(shared, spec.dtype, shape, (low, high))
        middle = (low + high) / 2
        # Both halves of an integer range with at least two values contain a value.
        if part is Part.LOWER:
            high = math.ceil(middle) if spec.dtype.is_integer else middle
        elif part is Part.UPPER:
            low = math.floor(middle) if spec.dtype.is_integer else middle
        elif part is Part.CENTER:
            tenth = (high - low) / 10
            low, high = middle - tenth / 2, middle + tenth / 2
            if spec.dtype.is_integer:
                low, high = math.floor(low), math.ceil(high)
        elements = random_elements(rng, spec.dtype, shape, (low, high))
        if part is Part.ENDS:
            values: Array = np.array([spec.dtype.scalar(end) for end in self._ends(spec)])
            return values[rng.integers(0, 2, shape)]
        if part is Part.ONE:
            elements[...] = spec.dtype.scalar(int(middle) if spec.dtype.is_integer else middle)
            return elements
        whole = spec.dtype.is_integer or spec.dtype is DType.BOOL
        if whole and spec.name not in self._config.ranges and part is Part.ALL:
            elements.reshape(-1)[:1] = 1  # it may be a mask, which should not be all 0
        return elements

    def other_padding(self, spec: TensorSpec, pad: np.generic) -> np.generic:
        """Return an allowed value of an input that differs from `pad`."""
        low, high = (spec.dtype.scalar(end) for end in self._ends(spec))
        return high if high != pad else low

    def _ends(self, spec: TensorSpec) -> tuple[Number, Number]:
        """Return the lowest and the highest value."""
        low, high = self._ranges[spec.name]
        if spec.dtype is DType.BOOL:
            return False, True
        return (int(low), int(high) - 1) if spec.dtype.is_integer else (low, high)

    def nudged(self, block: Block, seed: Sequence[int]) -> Block | None:
        """Return the request with every float moved to a neighbour, or None if it has no floats."""
        tensors = nudged(np.random.default_rng(seed), self._specs, block.tensors)
        return block._replace(tensors=tensors) if tensors is not None else None


def request_text(block: Block) -> str:
    """Return the size of a request of one row, for texts."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in block.sizes.items())
    return f"a request of one row{f' of {sizes}' if sizes else ''}"
