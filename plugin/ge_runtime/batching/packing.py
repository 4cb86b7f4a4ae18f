"""Packing: rows end to end along one axis, without padding between them, and back again.

A packed tensor is [total, ...]: it has the packed axis first and no dimension for rows. Where
each row begins is told by offsets (`Layout.offsets`). What a gear leaves behind the last row
belongs to no row and is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ge_runtime.batching.ragged import Carve, Layout, corner, fresh, lasting, place, positions_of
from ge_runtime.specs import Array, TensorSpec


def pack(layout: Layout, spec: TensorSpec, pad: np.generic, batch: Array) -> None:
    """Write the data of all rows of the blocks' tensor `spec.name` into `batch`, row after row.

    batch: [total, *other dims at the layout's extents], of the spec's type. `pad` is written to
    rows of padding, behind the last row, and beyond a row's end along other axes. Each element
    of the batch is written once.
    """
    positions, ends = positions_of(spec), layout.ends(spec.axes)
    bounds = list(pairwise(layout.offsets(spec.axes[0]).tolist()))
    for block, span in zip(layout.blocks, layout.spans, strict=True):
        rows = zip(block.tensors[spec.name], ends[span], bounds[span], strict=True)
        for row, row_ends, (start, end) in rows:
            # As the only row of a batch, whose packed axis is exactly as large as its data.
            place(row[None], positions, row_ends, pad, batch[None, start:end])
    batch[bounds[layout.filled - 1][1] :] = pad


def fill_packed_mask(layout: Layout, axis: str, mask: Array) -> None:
    """Write 1 where a row lies, rows of padding included, and 0 behind the last one.

    mask: [total], of any numeric type or bool.
    """
    end = int(layout.lengths[axis].sum())
    mask[:end] = 1
    mask[end:] = 0


def fill_packed_positions(layout: Layout, axis: str, positions: Array) -> None:
    """Write 0, 1, 2, ... from the start of each row on, and 0 behind the last one.

    positions: [total], of any numeric type that holds the longest row.
    """
    lengths = layout.lengths[axis].tolist()
    steps = np.arange(max(lengths), dtype=positions.dtype)
    end = sum(lengths)
    np.concatenate([steps[:length] for length in lengths], out=positions[:end])
    positions[end:] = 0


def unpack(
    layout: Layout, spec: TensorSpec, batch: Array, carve: Carve | None = None
) -> list[Array]:
    """Each block's rows of a packed output, in the shape that a padded batch answers in.

    batch: [total, *other dims at the layout's extents]. carve: as for `scatter`.
    Returns one C-contiguous array per block, [block's rows, *dims at the block's sizes]. So along
    the packed axis it has the size of the request's tensor; behind a row that is shorter there
    are zeros, for the graph gave nothing there.
    """
    offsets = layout.offsets(spec.axes[0]).tolist()
    answers = []
    for block, span in zip(layout.blocks, layout.spans, strict=True):
        shape = (block.rows, *spec.shape(block.sizes))
        bounds = offsets[span.start : span.stop + 1]
        own = batch[bounds[0] : bounds[-1]]
        if len(own) == shape[0] * shape[1]:  # no row is shorter than the request's tensor
            own = own.reshape(*shape[:2], *batch.shape[1:])
            answers.append(lasting(own[corner(shape)], carve))
        else:
            answer = (carve or fresh)(batch.dtype, shape)
            _spread(batch, bounds, answer)
            answers.append(answer)
    return answers


def _spread(batch: Array, bounds: Sequence[int], answer: Array) -> None:
    """Write the packed rows between `bounds` into [rows, size, ...], zeros behind each."""
    others = corner(answer.shape[2:])
    for row, (start, end) in zip(answer, pairwise(bounds), strict=True):
        row[: end - start] = batch[(slice(start, end), *others)]
        row[end - start :] = 0
