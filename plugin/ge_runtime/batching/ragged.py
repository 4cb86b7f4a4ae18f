"""Rows of many sizes laid into one batch, and its answers taken apart again.

A batch is [rows, *dims]. Along each axis it is as large as the largest row needs; where a row
has no data there is padding. Elements are copied once, from the request straight into the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.admission import Block
from ge_runtime.specs import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """The geometry of one batch: whose rows lie where, and how far their data reaches."""

    blocks: Sequence[Block]
    spans: Sequence[slice]
    """The rows of each block."""
    extents: Mapping[str, int]
    """Axis: its size in the batch."""
    lengths: Mapping[str, NDArray[np.int64]]
    """Axis: where the data of each row ends, [rows]."""
    cut_short: Collection[str]
    """The axes along which some row's data ends before its request's tensor does."""

    @property
    def rows(self) -> int:
        """The rows of the batch."""
        rows: int = self.spans[-1].stop
        return rows

    @classmethod
    def of(cls, blocks: Sequence[Block], answered: Collection[str]) -> Layout:
        """The geometry of a batch of `blocks`, at least one, all of the same model.

        answered: the axes that outputs carry. Along these the batch must be as large as the
        largest request, whose answer has that size; along others the longest row is enough.
        """
        rows = [block.rows for block in blocks]
        extents: dict[str, int] = {}
        lengths: dict[str, NDArray[np.int64]] = {}
        cut_short = set()
        for axis in blocks[0].sizes:
            sizes = np.array([block.sizes[axis] for block in blocks], np.int64).repeat(rows)
            ends = sizes
            if axis in blocks[0].lengths:
                own = chain.from_iterable(block.lengths[axis] for block in blocks)
                ends = np.fromiter(own, np.int64, len(sizes))
                if (ends < sizes).any():
                    cut_short.add(axis)
            lengths[axis] = ends
            extents[axis] = int((sizes if axis in answered else ends).max())
        spans = [slice(start, end) for start, end in pairwise(accumulate(rows, initial=0))]
        return cls(blocks, spans, extents, lengths, cut_short)

    def inside(self, axis: str) -> NDArray[np.bool_]:
        """[rows, extent of the axis]: True where a row has data."""
        result: NDArray[np.bool_] = np.arange(self.extents[axis]) < self.lengths[axis][:, None]
        return result


def gather(layout: Layout, spec: TensorSpec, pad: np.generic, batch: Array) -> None:
    """Write the rows of all blocks' tensor `spec.name` into `batch`, and `pad` where none reach.

    batch: [rows, *dims at the layout's extents], of the spec's type. What a tensor holds past a
    row's end is not data and becomes padding too.
    """
    parts = [block.tensors[spec.name] for block in layout.blocks]
    if all(part.shape[1:] == batch.shape[1:] for part in parts):
        np.concatenate(parts, out=batch)
    else:
        for rows, part in zip(layout.spans, parts, strict=True):
            _place(part, pad, batch[rows])
    for position, axis in enumerate(spec.dims, start=1):
        if axis in layout.cut_short:
            outside = ~layout.inside(str(axis))
            np.copyto(batch, pad, where=_along(outside, position, batch.ndim))


def _place(part: Array, pad: np.generic, target: Array) -> None:
    """Copy `part` to the low corner of `target` and fill the rest, each element once.

    Dimension by dimension, what lies beyond `part` is filled and then left out of sight. Data
    beyond the target is cut: no row of the batch reaches that far.
    """
    for position in range(1, target.ndim):
        size, extent = part.shape[position], target.shape[position]
        if size != extent:
            before = (slice(None),) * position
            beyond, within = (*before, slice(size, None)), (*before, slice(size))
            cut = (*before, slice(extent))
            target[beyond] = pad
            target, part = target[within], part[cut]
    target[...] = part


def fill_mask(layout: Layout, axes: Sequence[str], mask: Array) -> None:
    """Write 1 where a row has data along all `axes` and 0 elsewhere.

    mask: [rows, *extents of the axes], of any numeric type or bool.
    """
    parts = [
        _along(layout.inside(axis), position, mask.ndim)
        for position, axis in enumerate(axes, start=1)
    ]
    joint = parts[0]
    for part in parts[1:-1]:
        joint = joint & part
    # The last conjunction writes the mask: two-axis masks are as large as images, and need no
    # array of their own. Casting from bool costs no extra pass.
    np.logical_and(joint, parts[-1], out=mask)


def _along(values: NDArray[np.bool_], position: int, ndim: int) -> NDArray[np.bool_]:
    """[rows, size] as a view that broadcasts with [rows, ...] along dimension `position`."""
    shape = [1] * ndim
    shape[0], shape[position] = values.shape
    return values.reshape(shape)


def scatter(layout: Layout, spec: TensorSpec, batch: Array) -> list[Array]:
    """Each block's rows of an output, cut to the block's own size along named axes.

    batch: [rows, *dims at the layout's extents]. Returns contiguous copies, one per block: the
    batch may be overwritten while they are in use, and none keeps more memory than its own.
    """
    answers = []
    ragged = bool(spec.axes)
    for block, rows in zip(layout.blocks, layout.spans, strict=True):
        own = batch[rows]
        if ragged:
            sizes = (block.sizes[dim] if isinstance(dim, str) else None for dim in spec.dims)
            crop = (slice(None), *map(slice, sizes))
            own = own[crop]
        answers.append(own.copy())
    return answers
