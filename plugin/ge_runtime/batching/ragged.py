"""Ragged batches: copies rows of many sizes into one batch, and splits its results into answers.

A batch is [rows, *dims]. Along each axis it is at least as large as its longest row, and it may
have more rows than its requests; everything that is not data is padding. Elements are copied once,
from the request directly into the batch. `Geometry` is the size of a batch; `Layout` adds the
places of its rows. `packing` writes batches whose rows are joined without padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.admission import Block
from ge_runtime.specs import UNKNOWN, Array, TensorSpec

_ALL: Final = slice(None)
_SMALL: Final = 8192
"""Bytes of a row. Batches of rows up to this size are first filled with padding completely, then
rows are copied over it: 32 rows of tokens take 27 us, and 46 us if the rest of each row is filled
separately."""

Carve: TypeAlias = Callable[["np.dtype[Any]", tuple[int, ...]], Array]
"""Returns a C-contiguous array of this type and shape, in memory that outlives the batch."""


@dataclass(slots=True)  # not frozen, which doubles the time to create the layout of an execution
class Geometry:
    """The size of a batch, which determines the shapes of all its tensors. Never changed."""

    rows: int
    """Rows of the batch, including rows of padding."""
    extents: Mapping[str, int]
    """Size of the batch along each axis; along the packed axis the sum over rows."""
    packed: str | None = field(default=None, kw_only=True)
    """The axis along which rows are joined instead of stacked."""

    @property
    def requests(self) -> int:
        """Number of requests: at most one per row."""
        return self.rows

    def packs(self, spec: TensorSpec) -> bool:
        """Return whether this tensor has the packed axis first, and so no dimension for rows."""
        return self.packed is not None and spec.dims[:1] == (self.packed,)

    def shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """Return the tensor's shape in the batch: [rows, *dims], or [*dims] if it is packed."""
        dims = spec.shape(self.extents)
        return dims if self.packed and self.packs(spec) else (self.rows, *dims)

    def most_elements(self, spec: TensorSpec) -> int:
        """Return the largest possible number of elements of one request."""
        return math.prod(self.shape(spec))


@dataclass(eq=False)
class Layout(Geometry):
    """The geometry of one batch, with the rows of each request and the lengths of rows.

    The rows of requests come first. Rows of padding have length 1 along every axis, the smallest
    valid row, so that no graph divides by a length of 0.
    """

    blocks: Sequence[Block]
    spans: Sequence[slice]
    """The rows of each block."""
    filled: int
    """Number of rows of requests; later rows are padding."""
    row_ends: Mapping[str, Sequence[int]]
    """The end of the data in each row, [rows], by axis."""
    full: bool
    """True if no element of the batch is padding; False for packed batches."""

    @classmethod
    def of(
        cls,
        blocks: Sequence[Block],
        *,
        rows: int = 0,
        extents: Mapping[str, int] | None = None,
        packed: str | None = None,
    ) -> Layout:
        """Lay out a batch.

        Args:
            blocks: At least one request, all of the same model.
            rows: The rows of the gear; the batch has more if the blocks do.
            extents: The sizes of the gear; the batch is larger if its data is.
            packed: The packed axis; its size in `extents` is the sum over rows.
        """
        spans: list[slice] = []
        filled = 0
        for block in blocks:
            spans.append(slice(filled, filled + block.rows))
            filled += block.rows
        rows = max(rows, filled)
        padding = [1] * (rows - filled)
        least = extents or {}
        sizes: dict[str, int] = {}
        row_ends: dict[str, Sequence[int]] = {}
        full = not padding and packed is None
        for axis in blocks[0].sizes:
            # Lists, as requests have only one or two rows each.
            ends: list[int] = []
            needed = least.get(axis, 0)
            for block in blocks:
                ends += block.lengths.get(axis) or [block.sizes[axis]] * block.rows
                if axis != packed and block.needs[axis] > needed:
                    needed = block.needs[axis]
            ends += padding
            sizes[axis] = max(needed, sum(ends)) if axis == packed else needed
            row_ends[axis] = ends
            full = full and sum(ends) == rows * needed
        return cls(rows, sizes, blocks, spans, filled, row_ends, full, packed=packed)

    @cached_property
    def lengths(self) -> Mapping[str, NDArray[np.int64]]:
        """`row_ends` as arrays."""
        return {axis: np.array(ends, np.int64) for axis, ends in self.row_ends.items()}

    @property
    def requests(self) -> int:
        """Number of requests of the batch; a row of padding counts as a request of one row."""
        return len(self.blocks) + self.rows - self.filled

    def ends(self, axes: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the ends of each row's data along `axes`."""
        if not axes:
            return [()] * self.rows
        return list(zip(*[self.row_ends[axis] for axis in axes], strict=True))

    def offsets(self, axis: str) -> NDArray[np.int64]:
        """Return the accumulated lengths of rows, from 0: [rows + 1]."""
        result = np.zeros(self.rows + 1, np.int64)
        np.cumsum(self.lengths[axis], out=result[1:])
        return result

    def element_counts(self, spec: TensorSpec) -> NDArray[np.int64]:
        """Return the number of elements of data of each request in this tensor: [requests]."""
        fixed = math.prod(dim for dim in spec.dims if isinstance(dim, int))
        counts = np.full(self.rows, fixed, np.int64)
        for axis in spec.axes:
            counts *= self.lengths[axis]
        # A row of padding counts as a request of one row: see `requests`.
        starts = [span.start for span in self.spans]
        return np.add.reduceat(counts, [*starts, *range(self.filled, self.rows)])

    def most_elements(self, spec: TensorSpec) -> int:
        """Return the number of elements of data of the largest request."""
        return int(self.element_counts(spec).max())


def gather(layout: Layout, spec: TensorSpec, pad: np.generic, batch: Array) -> None:
    """Write the rows of all blocks' tensor `spec.name` into `batch`, and `pad` everywhere else.

    Elements past a row's end in a request's tensor are not data; they become padding too. Each
    element of a large batch is written once.

    Args:
        layout: The batch.
        spec: The tensor.
        pad: An element of the spec's type.
        batch: [rows, *dims at the layout's extents], of the spec's type.
    """
    parts = [block.tensors[spec.name] for block in layout.blocks]
    ends = layout.ends(spec.axes)
    full = tuple([layout.extents[axis] for axis in spec.axes])
    if ends.count(full) >= layout.filled and all(
        part.shape[1:] == batch.shape[1:] for part in parts
    ):
        # No row is shorter than the batch: one call copies everything.
        np.concatenate(parts, out=batch[: layout.filled])
    else:
        positions = positions_of(spec)
        left: np.generic | None = pad
        if batch.nbytes <= len(batch) * _SMALL:
            batch[...] = pad
            left = None  # nothing remains to be filled row by row
        for span, part in zip(layout.spans, parts, strict=True):
            own, target = ends[span], batch[span]
            # Most requests have one row, or rows with equal ends: one copy each.
            if own.count(own[0]) == len(own):
                place(part, positions, own[0], left, target)
            else:
                for row in range(len(own)):
                    at = slice(row, row + 1)
                    place(part[at], positions, own[row], left, target[at])
    batch[layout.filled :] = pad


def positions_of(spec: TensorSpec) -> tuple[int, ...]:
    """Return the dimensions of a tensor that are axes, counted with the dimension for rows."""
    return tuple([at for at, dim in enumerate(spec.dims, start=1) if not isinstance(dim, int)])


def place(
    source: Array,
    positions: Sequence[int],
    ends: Sequence[int],
    pad: np.generic | None,
    target: Array,
) -> None:
    """Copy the elements of `source` below `ends` to `target`, and fill the rest of it with `pad`.

    Dimension by dimension, the part beyond the end is filled and then excluded, so that each
    element of the target is written once.

    Args:
        source: An array.
        positions: The dimensions with ends.
        ends: An end for each of `positions`, within both arrays.
        pad: The value of padding; None leaves the rest unchanged.
        target: An array of the same rank, and equal sizes except at `positions`.
    """
    shape = target.shape
    index = [_ALL] * len(shape)
    for position, end in zip(positions, ends, strict=True):
        if pad is not None and end < shape[position]:
            index[position] = slice(end, None)
            target[tuple(index)] = pad
        index[position] = slice(end)
    within = tuple(index)
    target[within] = source[within]


def fill_mask(layout: Layout, axes: Sequence[str], mask: Array) -> None:
    """Write 1 where a row has data along all `axes`, at least one, and 0 elsewhere.

    mask: [rows, *extents of the axes], of any numeric type or bool.
    """
    if len(axes) == 1:
        np.less(np.arange(mask.shape[1]), layout.lengths[axes[0]][:, None], out=mask)
        return
    parts = []
    for position, axis in enumerate(axes, start=1):
        inside = np.arange(mask.shape[position]) < layout.lengths[axis][:, None]
        shape = [1] * mask.ndim
        shape[0], shape[position] = inside.shape
        parts.append(inside.reshape(shape))
    joint = parts[0]
    for part in parts[1:-1]:
        joint = joint & part
    # The last conjunction writes the mask directly: two-axis masks are as large as images, and a
    # temporary array is avoided. Casting from bool costs no extra pass.
    np.logical_and(joint, parts[-1], out=mask)


def fill_positions(layout: Layout, axis: str, positions: Array) -> None:
    """Write 0, 1, 2, ... where a row has data along `axis`, and 0 where there is padding.

    positions: [rows, extent of the axis], of any numeric type that holds its extent.
    """
    fill_mask(layout, (axis,), positions)
    positions *= np.arange(positions.shape[1], dtype=positions.dtype)


def scatter(
    layout: Layout, spec: TensorSpec, batch: Array, carve: Carve | None = None
) -> list[Array]:
    """Return each block's rows of an output, cut to the block's own size along its axes.

    Args:
        layout: The batch.
        spec: The output.
        batch: [rows, *dims at the layout's extents].
        carve: Given if the batch is not overwritten while answers are in use. An answer that is
            contiguous is then a view of the batch; other answers are copied into carved memory.
            Without it, all answers are separate copies.

    Returns:
        A C-contiguous array for each block, [block's rows, *dims at the block's sizes].
    """
    if not spec.axes:
        return [lasting(batch[span], carve) for span in layout.spans]
    return [
        lasting(batch[span][corner((block.rows, *spec.shape(block.sizes)))], carve)
        for block, span in zip(layout.blocks, layout.spans, strict=True)
    ]


def corner(shape: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of the low corner of this shape; UNKNOWN takes the whole dimension."""
    return tuple([_ALL if size == UNKNOWN else slice(size) for size in shape])


def fresh(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Allocate a new array, as a `Carve` does."""
    return np.empty(shape, dtype)


def lasting(own: Array, carve: Carve | None) -> Array:
    """Return the answer for `own`, a part of a batch; see `scatter`."""
    if carve is None:
        return own.copy()
    # A read-only part is shared by several answers: see `feeds.rows_first`.
    if own.flags.c_contiguous and own.flags.writeable:
        return own
    answer = carve(own.dtype, own.shape)
    answer[...] = own
    return answer
