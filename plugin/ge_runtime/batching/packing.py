"""Packing: joins rows end to end along one axis, without padding between them, and splits them.

A packed tensor is [total, ...]: the packed axis is first, and there is no dimension for rows.
Offsets (`Layout.offsets`) give the start of each row. The rest of a gear after the last row is
padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ge_runtime.batching.ragged import Carve, Layout, corner, fresh, lasting, place, positions_of
from ge_runtime.specs import Array, TensorSpec


def pack(layout: Layout, spec: TensorSpec, pad: np.generic, batch: Array) -> None:
    """Write the data of all rows of the blocks' tensor `spec.name` into `batch`, row after row.

    `pad` is written to rows of padding, after the last row, and past a row's end along other axes.
    Each element of the batch is written once.

    Args:
        layout: The batch.
        spec: The tensor.
        pad: An element of the spec's type.
        batch: [total, *other dims at the layout's extents], of the spec's type.
    """
    positions, ends = positions_of(spec), layout.ends(spec.axes)
    bounds = list(pairwise(layout.offsets(spec.axes[0]).tolist()))
    for block, span in zip(layout.blocks, layout.spans, strict=True):
        rows = zip(block.tensors[spec.name], ends[span], bounds[span], strict=True)
        for row, row_ends, (start, end) in rows:
            # Like the only row of a batch whose packed axis is exactly as large as its data.
            place(row[None], positions, row_ends, pad, batch[None, start:end])
    batch[bounds[layout.filled - 1][1] :] = pad


def fill_packed_mask(layout: Layout, axis: str, mask: Array) -> None:
    """Write 1 for all rows, including rows of padding, and 0 after the last row.

    mask: [total], of any numeric type or bool.
    """
    end = int(layout.lengths[axis].sum())
    mask[:end] = 1
    mask[end:] = 0


def fill_packed_positions(layout: Layout, axis: str, positions: Array) -> None:
    """Write 0, 1, 2, ... from the start of each row on, and 0 after the last row.

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
    """Return each block's rows of a packed output, in the shape of a padded batch's answers.

    Along the packed axis an answer has the size of the request's tensor, with zeros past a row's
    end, as the graph has no output there.

    Args:
        layout: The batch.
        spec: The output.
        batch: [total, *other dims at the layout's extents].
        carve: As for `ragged.scatter`.

    Returns:
        A C-contiguous array for each block, [block's rows, *dims at the block's sizes].
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
    """Write the packed rows between `bounds` into [rows, size, ...], with zeros after each row."""
    others = corner(answer.shape[2:])
    for row, (start, end) in zip(answer, pairwise(bounds), strict=True):
        row[: end - start] = batch[(slice(start, end), *others)]
        row[end - start :] = 0
