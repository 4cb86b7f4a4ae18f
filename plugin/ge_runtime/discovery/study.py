"""Experiments on one graph: sizes at which it executes, and the axes that its inputs share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from ge_runtime.discovery.graph import Graph, Port
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array, DType, Tensors

_LADDER: Final = (64, 32, 128, 16, 8, 224, 256, 512, 1024, 4096, 16000, 4, 2, 1)
"""Sizes of all free dims in the first executions of a graph, tried until an execution succeeds."""
_ELEMENTS_MOST: Final = 2**22
"""Largest number of elements of an input in these executions."""
_INTEGERS: Final = (10, 2, 1)
"""Limits (exclusive) of random integers; the next limit is tried if the graph fails."""


class Undecided(ArtifactFault):
    """The graph cannot be configured without an answer from the user."""


class Content(Enum):
    """The content of an input in experiments."""

    VALUES = "values"
    """Random values."""
    MASK = "mask"
    """1 for data, 0 for padding behind the data."""
    INVERTED = "inverted mask"
    """0 for data, 1 for padding behind the data."""
    LENGTH = "length"
    """The number of elements with data."""
    POSITIONS = "positions"
    """0, 1, 2, ... along the last dim."""
    TYPES = "types"
    """0: token types."""


_NAMES: Final[Mapping[Content, tuple[str, ...]]] = {
    Content.MASK: ("mask", "valid"),
    Content.POSITIONS: ("position_ids", "positions"),
    Content.TYPES: ("token_type", "segment_ids"),
    Content.LENGTH: ("length", "_len", "lens", "seqlen"),
}
"""Parts of names from which the content of an integer or BOOL input is proposed."""


def proposed_content(port: Port) -> Content:
    """Propose the content of an input from its name, type and rank."""
    whole = port.dtype.is_integer or port.dtype is DType.BOOL
    name = port.name.lower()
    for content, parts in _NAMES.items():
        if any(part in name for part in parts):
            # A length has one element for each row, and a mask has more.
            if content is Content.LENGTH and (not whole or len(port.symbols) > 1):
                continue
            if content is Content.MASK and len(port.dims) < 2:
                continue
            if content in (Content.POSITIONS, Content.TYPES) and not whole:
                continue
            return content
    return Content.VALUES


@dataclass(slots=True)
class Axis:
    """A size that differs between requests."""

    name: str
    symbols: tuple[str, ...]
    """The symbols of the signature that always have this size."""
    base: int
    """The size of this axis in experiments with other axes."""
    smallest: int = 1
    multiple: int = 1
    largest: int = 0
    stopped: str = ""
    """The engine's error at a size above `largest`; empty if no size failed."""

    @property
    def varies(self) -> bool:
        """False if the graph executes at one size only."""
        return self.largest != self.smallest


@dataclass(slots=True)
class Rows:
    """The dims that count the rows of a graph."""

    symbols: tuple[str, ...] = ()
    """Symbols of inputs that have the number of rows."""
    inputs: dict[str, int | None] = field(default_factory=dict)
    """Maps each input to its dim of rows; None if it has no rows."""
    outputs: dict[str, int | None] = field(default_factory=dict)
    fixed: int = 0
    """The only number of rows that the graph executes; 0 if it is free."""
    evidence: str = ""

    @property
    def batched(self) -> bool:
        """True if the graph has rows."""
        return bool(self.inputs)


@dataclass(slots=True)
class Study:
    """A graph and the results of the experiments on it. For one thread."""

    graph: Graph
    sample: Mapping[str, Array] = field(default_factory=dict)
    """The user's values of some inputs, in the graph's layout; they replace random values."""
    contents: dict[str, Content] = field(default_factory=dict)
    integers: int = _INTEGERS[0]
    """Random integers are below this number."""
    ids: dict[str, int] = field(default_factory=dict)
    """The largest value of an input's elements, by input."""
    bounded_ids: dict[str, str] = field(default_factory=dict)
    """The axis that determines the largest value of an input's elements, by input."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The size of each symbol in a successful execution."""
    rows: Rows = field(default_factory=Rows)
    axes: list[Axis] = field(default_factory=list)
    """Inputs of content LENGTH measure the first axis; without axes, all symbols."""
    relations: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    """The dims of each output without rows: a size, a relation between axes, or -1."""
    unnamed: set[str] = field(default_factory=set)
    """Inputs that may be lengths by their types and dims, but not by their names."""
    rejected: set[str] = field(default_factory=set)
    """Inputs that may mark the end of the data, but did not in an experiment."""
    constants: dict[str, float] = field(default_factory=dict)
    """The value of all elements of an input, by input."""
    _shapes: dict[tuple[object, ...], dict[str, tuple[int, ...]]] = field(default_factory=dict)
    """Shapes of outputs; see `output_shapes`."""

    def __post_init__(self) -> None:
        """Propose the content of each input."""
        self.contents = {port.name: proposed_content(port) for port in self.graph.inputs}
        if any(port.symbols[1:] for port in self.graph.inputs):
            for port in self.graph.inputs:
                one_for_each_row = len(port.dims) == 1 or port.dims[1:] == (1,)
                is_values = self.contents[port.name] is Content.VALUES
                if is_values and port.dtype.is_integer and one_for_each_row:
                    self.contents[port.name] = Content.LENGTH
                    self.unnamed.add(port.name)

    def symbols(self) -> tuple[str, ...]:
        """Return all symbols of the inputs, each once."""
        found = (symbol for port in self.graph.inputs for symbol in port.symbols)
        return tuple(dict.fromkeys(found))

    def values(
        self,
        sizes: Mapping[str, int] | None = None,
        seed: int = 0,
        true: Mapping[str, int] | None = None,
        behind: int | float = 0,
    ) -> dict[str, Array]:
        """Return the inputs of an execution.

        Args:
            sizes: The size of each symbol. Default: the study's `sizes`.
            seed: Seed of random values.
            true: The number of elements with data along some symbols; other elements are padding.
                Default: no padding.
            behind: Seed of the random values in the padding; a float is the value of all padding.
        """
        return {
            port.name: self._tensor(at, port, sizes or self.sizes, seed, true or {}, behind)
            for at, port in enumerate(self.graph.inputs)
        }

    def run(
        self,
        sizes: Mapping[str, int] | None = None,
        seed: int = 0,
        true: Mapping[str, int] | None = None,
        behind: int | float = 0,
    ) -> dict[str, Array] | None:
        """Execute the graph with `values`; None if it fails."""
        return self.graph.run(self.values(sizes, seed, true, behind))

    def most_elements(self, sizes: Mapping[str, int]) -> int:
        """Return the number of elements of the largest input at these sizes."""
        shapes = (port.shape(sizes) for port in self.graph.inputs)
        return max(map(math.prod, shapes), default=0)

    def at_limits(self) -> dict[str, int]:
        """Return the sizes with all axes at their largest size."""
        largest = {one: axis.largest for axis in self.axes for one in axis.symbols}
        return {**self.sizes, **largest}

    def works(self, sizes: Mapping[str, int], *, again: bool = False) -> bool:
        """Return whether the graph executes at these sizes; see `output_shapes`."""
        return self.output_shapes(sizes, again=again) is not None

    def output_shapes(
        self, sizes: Mapping[str, int], *, again: bool = False
    ) -> dict[str, tuple[int, ...]] | None:
        """Return the shapes of outputs at these sizes of symbols; None if the graph fails.

        Successful executions are not repeated, unless `again` is true. Once axes are known, each
        execution has other random values, so that a size that depends on values fits no relation.
        """
        key = (*sizes.items(), self.integers, *self.constants.items())
        if again or key not in self._shapes:
            answer = self.run(sizes, seed=len(self._shapes) if self.axes else 0)
            if answer is None:
                return None
            self._shapes[key] = {name: array.shape for name, array in answer.items()}
        return self._shapes[key]

    def _tensor(
        self,
        at: int,
        port: Port,
        sizes: Mapping[str, int],
        seed: int,
        true: Mapping[str, int],
        behind: int | float,
    ) -> Array:
        shape = port.shape(sizes)
        content = self.contents[port.name]
        if port.name in self.constants:
            return np.full(shape, self.constants[port.name], port.dtype.numpy)
        if content is Content.TYPES:
            return np.zeros(shape, port.dtype.numpy)
        if content is Content.LENGTH:
            measured = self.axes[0].symbols if self.axes else sizes
            sized = [true.get(symbol, sizes[symbol]) for symbol in measured]
            return np.full(shape, max(sized, default=1), port.dtype.numpy)
        if content is Content.POSITIONS:
            steps = np.arange(shape[-1] if shape else 1)
            return np.broadcast_to(steps, shape).astype(port.dtype.numpy)
        inside = _inside(port, shape, true)
        if content is Content.MASK:
            return inside.astype(port.dtype.numpy)
        if content is Content.INVERTED:
            return (~inside).astype(port.dtype.numpy)
        data = self.random(port, shape, (seed, at))
        if inside.all():
            return data
        if isinstance(behind, float):
            most = self.integers - 1 if port.dtype.is_integer else behind
            return np.where(inside, data, np.array(min(behind, most), port.dtype.numpy))
        return np.where(inside, data, self.random(port, shape, (behind, at, 1)))

    def random(self, port: Port, shape: Sequence[int], seed: Sequence[int]) -> Array:
        """Return random elements that the input accepts; equal seeds give equal elements.

        With a sample, integers are copied from the sample, which is repeated or cut to the shape,
        and floats differ from the sample by at most a tenth. Padding (three seeds) consists of
        random elements of the sample.
        """
        rng = np.random.default_rng(seed)
        if port.name in self.sample:
            return _like(self.sample[port.name], shape, rng, seed)
        if port.dtype is DType.BOOL:
            return rng.integers(0, 2, shape).astype(np.bool_)
        if port.dtype.is_integer:
            most = min(self.ids.get(port.name, self.integers - 1) + 1, port.dtype.largest)
            return rng.integers(0, int(most), shape).astype(port.dtype.numpy)
        return rng.uniform(-1, 1, shape).astype(port.dtype.numpy)


def _like(
    sample: Array, shape: Sequence[int], rng: np.random.Generator, seed: Sequence[int]
) -> Array:
    """Return values of a sample in another shape; see `Study.random`."""
    if len(seed) > 2:
        return rng.choice(sample.reshape(-1), tuple(shape))
    found = sample
    for at, size in enumerate(shape):
        found = np.take(found, np.arange(size) % sample.shape[at], at)
    if seed[0] and found.dtype.kind == "f":
        found = (found * rng.uniform(0.9, 1, found.shape)).astype(found.dtype)
    return found


def _inside(port: Port, shape: Sequence[int], true: Mapping[str, int]) -> Array:
    """Return a mask of the elements that are data."""
    inside = np.ones(shape, np.bool_)
    for at, dim in enumerate(port.dims):
        if isinstance(dim, str) and dim in true:
            places = np.arange(shape[at]) < true[dim]
            inside &= places.reshape([-1 if own == at else 1 for own in range(len(shape))])
    return inside


def first_sizes(study: Study, rows: Sequence[str]) -> dict[str, int] | None:
    """Find sizes at which the graph executes: one row, and all other free dims of equal size.

    The limit of the study's random integers is lowered if that is needed. Returns sizes by symbol,
    or None if no size succeeds; `graph.last_error` has the last failure.
    """
    symbols = study.symbols()
    if study.sample:
        given = {
            dim: study.sample[port.name].shape[at]
            for port in study.graph.inputs
            if port.name in study.sample
            for at, dim in enumerate(port.dims)
            if isinstance(dim, str)
        }
        sizes = {symbol: 1 if symbol in rows else given.get(symbol, 1) for symbol in symbols}
        return sizes if study.works(sizes) else None
    ladder = _LADDER if set(symbols) - {*rows} else (1,)
    has_integers = any(port.dtype.is_integer for port in study.graph.inputs)
    for limit in _INTEGERS if has_integers else _INTEGERS[:1]:
        study.integers = limit
        for size in ladder:
            sizes = {symbol: 1 if symbol in rows else size for symbol in symbols}
            if study.most_elements(sizes) <= _ELEMENTS_MOST and study.works(sizes):
                return sizes
    return None


def grouped(study: Study) -> list[tuple[str, ...]]:
    """Group the symbols whose sizes must be equal, by executions in which only some change.

    A symbol is free if it may change without others. Symbols that are not free are tried in pairs,
    then all together. Names are not used: exporters give one axis several names. Symbols of rows
    are not grouped.
    """
    others = [symbol for symbol in study.symbols() if symbol not in study.rows.symbols]
    bound = [one for one in others if not _changes(study, [one])]
    groups: list[tuple[str, ...]] = [(symbol,) for symbol in others if symbol not in bound]
    while bound:
        first, *rest = bound
        tried = [*([first, one] for one in rest), bound]
        # A dim that changes in no group has only one size.
        group = next((one for one in tried if _changes(study, one)), [first])
        groups.append(tuple(group))
        bound = [one for one in bound if one not in group]
    return groups


def _changes(study: Study, symbols: Sequence[str]) -> bool:
    """Return whether the graph executes if only these symbols have another size."""
    size = study.sizes[symbols[0]]
    # A multiple of every divisor, a neighbour, and a smaller size.
    tried = dict.fromkeys(own for own in (2 * size, size + 1, size // 2) if own > 1)
    return any(study.works({**study.sizes, **dict.fromkeys(symbols, own)}) for own in tried)


def last_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number for which `holds` is true, as for `low`; for `high` it is false."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def equal_answers(some: Tensors, others: Tensors) -> bool:
    """Return whether two answers have the same shapes and elements. NaN differs from NaN."""
    return all(np.array_equal(some[name], others[name]) for name in others)
