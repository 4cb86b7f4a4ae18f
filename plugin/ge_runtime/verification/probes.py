"""Probes of the load check: seeded requests of chosen sizes, and the executions that try them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import Final

import numpy as np

from ge_runtime.batching.admission import Block
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.specs import ROWS, UNKNOWN, Array, DType, Relation, TensorSpec
from ge_runtime.verification.elements import element_ranges, nudged, random_elements

_SHARES: Final = (16, 4, 1)
"""Axes without gears are tried at their limits divided by these."""
_MIXED_REQUESTS: Final = 3
"""Requests of one execution: one that is as large as the execution, and two smaller ones."""
_DEVICE_INTEGERS: Final = (0.0, 2.0)
"""On devices, integers without `range.<input>` are 0 and 1. A larger index may lie outside a table
of the graph, which some devices do not survive; a CPU engine raises."""

_SHARED_SEED: Final = 4
"""Seed of inputs that have one value for the whole execution."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One execution of several requests, or of one where it has room for no more."""

    gear: Gear
    probes: tuple[Mapping[str, int], ...]
    """Sizes of the one-row requests whose answers are compared, the smallest first."""
    mixed: bool
    """True if a request of the gear's own size is executed with them."""

    @property
    def elements(self) -> int:
        """Rows times all extents."""
        return self.gear.rows * math.prod(self.gear.extents.values())


def trials_of(config: RuntimeConfig, gears: Gears) -> list[Trial]:
    """Return the executions to try: every gear, and axes without gears at parts of their limits.

    The smallest comes first, then the largest, then repeatedly the middle of the remaining ones.
    So small, large and medium sizes are tried however early the time runs out.
    """
    geared = set(chain.from_iterable(config.gears))
    free = [axis for axis in config.limits if axis not in geared]
    found: list[Trial] = []
    for gear in gears.every():
        for share in _SHARES if free else (1,):
            extents = dict(gear.extents)
            extents.update({axis: _share(config, axis, share) for axis in free})
            fixed = ROWS in geared or not config.batched
            rows = gear.rows if fixed else min(_MIXED_REQUESTS, config.rows)
            trial = _trial(config, Gear(rows, extents))
            if trial is not None and trial not in found:
                found.append(trial)
    found = by_work(found)
    return found[:1] + _spread(found[1:])


def by_work(trials: Iterable[Trial]) -> list[Trial]:
    """Sort by growing number of elements."""
    return sorted(trials, key=lambda trial: trial.elements)


def _spread(trials: Sequence[Trial]) -> list[Trial]:
    """Order the trials: the last, then repeatedly the middle of each remaining part."""
    order: list[Trial] = list(trials[-1:])
    parts = [trials[:-1]]
    while parts:
        part = parts.pop(0)
        if part:
            middle = len(part) // 2
            order.append(part[middle])
            parts += [part[:middle], part[middle + 1 :]]
    return order


def _share(config: RuntimeConfig, axis: str, share: int) -> int:
    """Return a size that executions may have along the axis, about its limit / `share`."""
    return config.axis_sizes.executed(axis, math.ceil(config.limits[axis] / share))


def _trial(config: RuntimeConfig, gear: Gear) -> Trial | None:
    """Return None if an output would have a size below 1 in every request."""
    probes = [dict(sizes) for sizes in _sizes_within(config, gear.extents)]
    # Two requests of equal sizes show nothing that one does not.
    probes = [sizes for at, sizes in enumerate(probes) if sizes not in probes[:at]]
    if not probes:
        return None
    room = min(gear.rows, config.rows)
    return Trial(gear, tuple(probes[: max(1, room - 1)]), mixed=room > 1)


def _sizes_within(config: RuntimeConfig, extents: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the smallest request that fits an execution of these extents, and one half its size."""
    for share in (math.inf, 2):
        sizes = {
            axis: extent
            if config.padding[axis] is PaddingRule.EQUAL
            else max(math.ceil(extent / share), config.axis_sizes.minimums[axis])
            for axis, extent in extents.items()
        }
        # Doubled until every output has a size of at least 1.
        while not _answerable(config, sizes) and sizes != extents:
            sizes = {axis: min(2 * size, extents[axis]) for axis, size in sizes.items()}
        if _answerable(config, sizes):
            yield sizes


def _answerable(config: RuntimeConfig, sizes: Mapping[str, int]) -> bool:
    dims = chain.from_iterable(spec.dims for spec in config.outputs)
    return all(dim.size(sizes) >= 1 for dim in dims if isinstance(dim, Relation))


class Part(Enum):
    """A part of a tensor's element range."""

    ALL = "all"
    LOWER = "lower half"
    UPPER = "upper half"


class Values:
    """Makes requests of seeded values: equal seeds give equal requests."""

    def __init__(self, config: RuntimeConfig, states: Sequence[TensorSpec] = ()) -> None:
        """Prepare for one model.

        Args:
            config: The model.
            states: Tensors kept between the requests of a sequence, by graph input; requests then
                belong to a sequence.

        Raises:
            RuntimeFault: A range that its tensor's type cannot represent.
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
        """Return a request of one row, full to its ends, with values from a part of their ranges.

        Args:
            sizes: Axis to the size of the request's tensors.
            seed: A seed of NumPy's default generator.
            part: The part of each element range to draw from.
        """
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
        # Both halves of an integer range with at least two values have a value.
        if part is Part.LOWER:
            high = math.ceil(middle) if spec.dtype.is_integer else middle
        elif part is Part.UPPER:
            low = math.floor(middle) if spec.dtype.is_integer else middle
        elements = random_elements(rng, spec.dtype, shape, (low, high))
        whole = spec.dtype.is_integer or spec.dtype is DType.BOOL
        if whole and spec.name not in self._config.ranges and part is Part.ALL:
            elements.reshape(-1)[:1] = 1  # it may be a mask, which should not be all 0
        return elements

    def nudged(self, block: Block, seed: Sequence[int]) -> Block | None:
        """Return the request with every float moved to a neighbour, or None if it has no floats."""
        tensors = nudged(np.random.default_rng(seed), self._specs, block.tensors)
        return replace(block, tensors=tensors) if tensors is not None else None
