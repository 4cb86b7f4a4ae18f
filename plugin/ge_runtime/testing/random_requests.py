"""Random requests of a model, drawn from its own configuration.

Most sizes are small, and many lie at, just above or just below a bound: 1, 2, a limit, a gear.
Nothing is executed here. Equal seeds draw equal requests.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.gears import Gears
from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import ROWS, UNKNOWN, Array, DType, Relation, Tensors, TensorSpec
from ge_runtime.verification.elements import (
    ElementRange,
    element_ranges,
    nudged,
    poison_of,
    random_elements,
    range_of,
)

MOST_REQUESTS: Final = 10
"""Largest number of requests in a request batch."""

ENOUGH_ELEMENTS: Final = 1024
"""Largest number of elements of a batch padded to its largest sizes, unless two rows at the limits
already have more."""

_BOUND: Final = 0.3
"""Probability that a size is one of the bounds."""
_ALIKE: Final = 0.6
"""Probability that a request repeats the previous sizes along axes that are never padded."""
_TRIES: Final = 20
"""Attempts to draw a shape that the model accepts. If all fail, one row at the limits is used,
which every model accepts."""


@dataclass(frozen=True, slots=True)
class RequestExtent:
    """The number of rows of a request, the sizes of its tensors, and the ends of its rows."""

    rows: int
    sizes: Mapping[str, int]
    """Maps each axis to the size of the request's tensors along it."""
    ends: Mapping[str, Sequence[int]]
    """Maps each axis to the end of the data in each row."""

    def ends_of(self, row: int) -> dict[str, int]:
        """Return the end of the data in this row, by axis."""
        return {axis: ends[row] for axis, ends in self.ends.items()}

    def inside(self, spec: TensorSpec) -> NDArray[np.bool_]:
        """Return a mask of the elements that hold data; it broadcasts with [rows, *dims]."""
        result = np.ones((self.rows, *[1] * len(spec.dims)), np.bool_)
        for at, dim in enumerate(spec.dims, start=1):
            if not isinstance(dim, int):
                places = np.arange(_dim_size(dim, self.sizes))
                ends = np.array([_dim_size(dim, self.ends_of(row)) for row in range(self.rows)])
                along = [1] * result.ndim
                along[at] = -1
                column = ends.reshape(-1, *[1] * len(spec.dims))
                result = result & (places.reshape(along) < column)
        return result

    def __str__(self) -> str:
        words = [f"{self.rows} row(s)", *(f"{axis} {size}" for axis, size in self.sizes.items())]
        words += [
            f"rows end at {axis} {', '.join(map(str, ends))}"
            for axis, ends in self.ends.items()
            if any(end < self.sizes[axis] for end in ends)
        ]
        return ", ".join(words)


def _dim_size(dim: str | Relation, sizes: Mapping[str, int]) -> int:
    return sizes[dim] if isinstance(dim, str) else dim.size(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class RandomRequest:
    """A request of random sizes, lengths and elements."""

    extent: RequestExtent
    given: Tensors
    """Tensors for the runtime. Optional inputs may be missing.

    Elements after the end of a row are poison: values that must not influence answers.
    """
    complete: Tensors
    """The request's data with all inputs present, [rows, *dims] even if requests have no rows."""
    originals: Tensors
    """The client's tensors: `given`, unless the model's own code prepares tensors from them."""

    def __str__(self) -> str:
        missing = ", ".join(sorted(self.complete.keys() - self.given.keys()))
        return f"{self.extent}, without {missing}" if missing else str(self.extent)


class RequestGenerator:
    """Draws request batches of one model. For one thread."""

    def __init__(
        self, config: RuntimeConfig, gears: Gears, ranges: Mapping[str, ElementRange]
    ) -> None:
        """Prepare for one model; `ranges` has the range of elements of some inputs.

        Raises:
            RuntimeFault: A range is for an unknown input, or the input's type cannot represent it.
        """
        self._config = config
        self._gears = gears
        names = [spec.name for spec in config.sources]
        for name in ranges:
            if name not in names:
                expected = ", ".join(names)
                raise RuntimeFault(f"range of '{name}': found no such input, expected: {expected}")
        self.ranges = element_ranges(config, config.sources, ranges)
        """Maps each input to the range of its elements."""
        self._bounds = {
            axis: _bounds(limit, (gear.extents[axis] for gear in gears.every()))
            for axis, limit in config.limits.items()
        }
        self._steps = {
            axis: config.axis_sizes.steps[axis] if axis in config.equal_axes else 1
            for axis in config.limits
        }
        # Along equal axes with gears only the sizes of the gears are accepted.
        self._only = {
            axis: sorted({gear.extents[axis] for gear in gears.every()})
            for axis in config.equal_axes
            if any(axis in axes for axes in config.gears) and config.oversize == "error"
        }
        self._bounds[ROWS] = _bounds(config.rows, (gear.rows for gear in gears.every()))
        self._most = max(ENOUGH_ELEMENTS, 2 * self._elements(config.limits))

    def request_batch(self, rng: np.random.Generator) -> list[RandomRequest]:
        """Draw a batch of at least one request."""
        batch: list[RandomRequest] = []
        rows, largest = 0, dict.fromkeys(self._config.limits, 1)
        equal: dict[str, int] = {}
        for _ in range(rng.integers(2, MOST_REQUESTS + 1)):
            # Where only equal sizes share an execution, some requests should have equal sizes.
            own_rows, sizes = self._shape(rng, equal if equal and rng.random() < _ALIKE else {})
            equal = {axis: sizes[axis] for axis in self._config.equal_axes}
            # The batch must stay affordable if all requests share one execution.
            together = {axis: max(size, largest[axis]) for axis, size in sizes.items()}
            if (rows + own_rows) * self._elements(together) <= self._most:
                rows, largest = rows + own_rows, together
                batch.append(self._request(rng, own_rows, sizes))
        return batch

    def _elements(self, sizes: Mapping[str, int]) -> int:
        """Return the number of elements of a row of the largest input."""
        sources = self._config.sources
        return max(math.prod(sizes[axis] for axis in spec.axes) for spec in sources)

    def _shape(
        self, rng: np.random.Generator, equal: Mapping[str, int]
    ) -> tuple[int, dict[str, int]]:
        """Draw the rows and sizes of one request with at most half of a batch's elements.

        Axes in `equal` get the sizes in `equal`.
        """
        limits = self._config.limits
        for _ in range(_TRIES):
            sizes = {axis: self._size(rng, axis, limit) for axis, limit in limits.items()}
            sizes.update(equal)
            rows = 1 if rng.random() < 0.5 else self._size(rng, ROWS, self._config.rows)
            if 2 * rows * self._elements(sizes) <= self._most and self._accepts(rows, sizes):
                return rows, sizes
        return 1, dict(limits)

    def _size(self, rng: np.random.Generator, axis: str, limit: int) -> int:
        if axis in self._only:
            return int(rng.choice(self._only[axis]))
        if rng.random() < _BOUND:
            size = int(rng.choice(self._bounds[axis]))
        else:
            size = int(limit ** rng.random())  # 1 to 10 is as likely as 10 to 100
        if axis == ROWS:
            return size
        step = self._steps[axis]
        return -(-max(size, self._config.axis_sizes.minimums[axis]) // step) * step

    def _accepts(self, rows: int, sizes: Mapping[str, int]) -> bool:
        """Return whether the model accepts requests of this shape."""
        config = self._config
        relations = (dim for out in config.outputs for dim in out.dims if isinstance(dim, Relation))
        fits = config.oversize == "fallback" or self._gears.fit(rows, sizes) is not None
        return fits and all(relation.size(sizes) >= 1 for relation in relations)

    def _request(self, rng: np.random.Generator, rows: int, sizes: dict[str, int]) -> RandomRequest:
        config = self._config
        missing = {name for name in config.defaults if rng.random() < 0.5}
        ends = {axis: [size] * rows for axis, size in sizes.items()}
        for axis, name in config.axis_lengths.items():
            if name not in missing:
                ends[axis] = [_random_end(rng, sizes[axis]) for _ in range(rows)]
        return self._filled(rng, RequestExtent(rows, sizes, ends), missing)

    def with_other_values(self, rng: np.random.Generator, request: RandomRequest) -> RandomRequest:
        """Draw a request of the same sizes, lengths and missing inputs, with other values.

        Inputs with one value for the whole execution keep it: requests with different values of
        such an input would not share an execution.
        """
        missing = {*request.complete} - {*request.given}
        without = self._config.batch_axes.without & request.complete.keys()
        kept = {name: request.complete[name] for name in without}
        return self._filled(rng, request.extent, missing, kept)

    def _filled(
        self,
        rng: np.random.Generator,
        extent: RequestExtent,
        missing: Collection[str],
        kept: Tensors | None = None,
    ) -> RandomRequest:
        """Draw the tensors of a request, except those in `kept`."""
        config, rows, sizes = self._config, extent.rows, extent.sizes
        axis_of = {name: axis for axis, name in config.axis_lengths.items()}
        given: dict[str, Array] = {}
        complete: dict[str, Array] = {}
        for spec in config.sources:
            name = spec.name
            shape = (rows, *_random_dims(rng, spec.shape(sizes)))
            if name in axis_of:
                lengths = np.array(extent.ends[axis_of[name]], spec.dtype.numpy)
                complete[name] = np.broadcast_to(
                    lengths.reshape(rows, *[1] * len(spec.dims)), shape
                )
            elif name in missing:
                element = spec.dtype.scalar(config.defaults[name])
                complete[name] = np.full(shape, element, spec.dtype.numpy)
            elif kept and name in kept:
                complete[name] = kept[name]
            else:
                complete[name] = random_elements(rng, spec.dtype, shape, self.ranges[name])
                if name in config.batch_axes.without:  # all rows have the same value
                    complete[name][1:] = complete[name][:1]
            if name not in missing:
                given[name] = _poisoned(complete[name], spec, extent)
        if not config.batched:
            given = {name: tensor[0] for name, tensor in given.items()}
        originals = self._originals(rng, rows) if config.prepared else given
        return RandomRequest(extent, given, complete, originals)

    def _originals(self, rng: np.random.Generator, rows: int) -> dict[str, Array]:
        """Draw the passed-through inputs of a model whose graph takes prepared tensors."""
        lead = (rows,) if self._config.max_batch_size else ()
        passed = set(self._config.passthrough.values())
        return {
            spec.name: random_elements(
                rng, spec.dtype, (*lead, *_random_dims(rng, spec.dims)), range_of(spec, None)
            )
            for spec in self._config.inputs
            if spec.name in passed
        }


def nudged_values(config: RuntimeConfig, request: RandomRequest, seed: int) -> RandomRequest | None:
    """Return the request, for `Reference`, with every float moved to a neighbouring value.

    Returns None if it has no floats.
    """
    tensors = nudged(np.random.default_rng(seed), config.sources, request.complete)
    return replace(request, complete=tensors) if tensors is not None else None


def _bounds(limit: int, gears: Iterable[int]) -> list[int]:
    near = {1, 2, limit, *(size + step for size in gears for step in (-1, 0, 1))}
    return sorted(size for size in near if 1 <= size <= limit)


def _random_end(rng: np.random.Generator, size: int) -> int:
    """Draw where a row's data ends: mostly after its first or its last element."""
    choice = rng.random()
    return size if choice < 0.4 else 1 if choice < 0.6 else int(rng.integers(1, size + 1))


def _random_dims(rng: np.random.Generator, dims: Sequence[object]) -> tuple[int, ...]:
    """Return the dims with a random size for each UNKNOWN."""
    sizes = (dim if isinstance(dim, int) else UNKNOWN for dim in dims)
    return tuple(int(rng.integers(1, 5)) if size == UNKNOWN else size for size in sizes)


def _poisoned(data: Array, spec: TensorSpec, extent: RequestExtent) -> Array:
    """Return the tensor with poison where it holds no data."""
    if spec.dtype is DType.BYTES or UNKNOWN in spec.dims:
        return data
    return np.where(extent.inside(spec), data, poison_of(spec.dtype))
