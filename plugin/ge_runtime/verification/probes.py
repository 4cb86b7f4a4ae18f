"""Probes: seeded requests of chosen sizes, and the executions in which they are tried."""

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
from ge_runtime.relations import Relation
from ge_runtime.specs import ROWS, UNKNOWN, Array, DType, TensorSpec
from ge_runtime.verification.distance import neighbours, random_elements, range_of

_SHARES: Final = (16, 4, 1)
"""Parts of their limits that free axes are tried at."""
_COMPANY: Final = 3
"""Requests of one execution: one that is as large as it, and two that are not."""
_LEAST: Final = (0.0, 2.0)
"""On devices, the values of whole numbers that no `range.<input>` is given for: 0 and 1. A larger
one may lie beside a table of the graph, which some devices do not survive; a CPU engine raises."""

_SHARED: Final = 4
"""The seed of inputs that an execution has once."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One execution of several requests, or of one where it has room for no more."""

    gear: Gear
    probes: tuple[Mapping[str, int], ...]
    """Sizes of the requests whose answers are compared, each of one row: the smallest first."""
    company: bool
    """Whether a request of the gear's own size is executed with them."""

    @property
    def elements(self) -> int:
        """Rows times all extents."""
        return self.gear.rows * math.prod(self.gear.extents.values())


def trials_of(config: RuntimeConfig, gears: Gears) -> list[Trial]:
    """What a load tries: every gear; of free axes, a few parts of their limits.

    The smallest first, then the largest, and then what lies in the middle of those before: however
    early the time runs out, sizes of all kinds have been tried.
    """
    geared = set(chain.from_iterable(config.gears))
    free = [axis for axis in config.limits if axis not in geared]
    found: list[Trial] = []
    for gear in gears.every():
        for share in _SHARES if free else (1,):
            extents = dict(gear.extents)
            extents.update({axis: _share(config, axis, share) for axis in free})
            fixed = ROWS in geared or not config.batched
            rows = gear.rows if fixed else min(_COMPANY, config.rows)
            trial = _trial(config, Gear(rows, extents))
            if trial is not None and trial not in found:
                found.append(trial)
    found = by_work(found)
    return found[:1] + _spread(found[1:])


def by_work(trials: Iterable[Trial]) -> list[Trial]:
    """By growing work."""
    return sorted(trials, key=lambda trial: trial.elements)


def _spread(trials: Sequence[Trial]) -> list[Trial]:
    """The last, and then what lies in the middle of those before."""
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
    """A size that executions may have along the axis: about this part of its limit."""
    return config.axis_sizes.executed(axis, math.ceil(config.limits[axis] / share))


def _trial(config: RuntimeConfig, gear: Gear) -> Trial | None:
    """None if outputs have no size in executions of this one."""
    probes = [dict(sizes) for sizes in _sizes_within(config, gear.extents)]
    # Of two sizes that are the same only rows can be compared, and for that one is enough.
    probes = [sizes for at, sizes in enumerate(probes) if sizes not in probes[:at]]
    if not probes:
        return None
    room = min(gear.rows, config.rows)
    return Trial(gear, tuple(probes[: max(1, room - 1)]), company=room > 1)


def _sizes_within(config: RuntimeConfig, extents: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The smallest request that an execution of these extents takes, and one of half the size."""
    for share in (math.inf, 2):
        sizes = {
            axis: extent
            if config.padding[axis] is PaddingRule.EQUAL
            else max(math.ceil(extent / share), config.axis_sizes.minimums[axis])
            for axis, extent in extents.items()
        }
        # Grown until every output has a size.
        while not _answerable(config, sizes) and sizes != extents:
            sizes = {axis: min(2 * size, extents[axis]) for axis, size in sizes.items()}
        if _answerable(config, sizes):
            yield sizes


def _answerable(config: RuntimeConfig, sizes: Mapping[str, int]) -> bool:
    dims = chain.from_iterable(spec.dims for spec in config.outputs)
    return all(dim.size(sizes) >= 1 for dim in dims if isinstance(dim, Relation))


class Part(Enum):
    """Of the range of values."""

    ALL = "all"
    LOWER = "lower half"
    UPPER = "upper half"


class Values:
    """Blocks of seeded values: equal seeds give equal blocks."""

    def __init__(self, config: RuntimeConfig, states: Sequence[TensorSpec] = ()) -> None:
        """states: what is kept of sequences; blocks then are requests of some."""
        self._config = config
        self._states = states
        self._specs = [
            spec
            for spec in config.sources
            # What is passed by the graph may be of any type and size.
            if spec.dtype is not DType.BYTES and UNKNOWN not in spec.dims
        ]
        self._lengths = config.axis_lengths
        self._unknown = None if config.device_kind == "cpu" else _LEAST

    def block(self, sizes: Mapping[str, int], seed: Sequence[int], part: Part = Part.ALL) -> Block:
        """One row of these sizes, full to its ends, of values from a part of their ranges."""
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
        own = self._config.ranges.get(spec.name)
        whole = spec.dtype.is_integer or spec.dtype is DType.BOOL
        low, high = range_of(
            spec, own.span(spec.dtype) if own else self._unknown if whole else None
        )
        if spec.name in self._config.batch_axes.without:
            # One value for all rows: requests of other values share no execution.
            return random_elements(np.random.default_rng(_SHARED), spec.dtype, shape, (low, high))
        middle = (low + high) / 2
        # Halves of integers that a type of two values or more has are not empty.
        if part is Part.LOWER:
            high = math.ceil(middle) if spec.dtype.is_integer else middle
        elif part is Part.UPPER:
            low = math.floor(middle) if spec.dtype.is_integer else middle
        elements = random_elements(rng, spec.dtype, shape, (low, high))
        if whole and own is None and part is Part.ALL:
            elements.reshape(-1)[:1] = 1  # a client's own mask: somewhere there is something
        return elements

    def nudged(self, block: Block, seed: Sequence[int]) -> Block | None:
        """The block with every float moved to a neighbour, up or down; None if there is none."""
        rng = np.random.default_rng(seed)
        moved = {}
        for spec in self._specs:
            neighbour = neighbours(rng, spec.dtype, block.tensors[spec.name])
            if neighbour is not None:
                moved[spec.name] = neighbour
        return replace(block, tensors={**block.tensors, **moved}) if moved else None
