"""Graph inputs of a batch: joined from requests, or generated for them.

A feed has the spec of a graph input, returns its shape in a batch, and writes its content.
Immutable; safe from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ge_runtime.batching.packing import fill_packed_mask, fill_packed_positions, pack
from ge_runtime.batching.ragged import Geometry, Layout, fill_mask, fill_positions, gather
from ge_runtime.specs import PAST, Array, TensorSpec


class Feed(Protocol):
    """One graph input."""

    @property
    def spec(self) -> TensorSpec:
        """The graph's tensor, without the batch dimension."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return the tensor's shape in a batch, including the batch dimension.

        Exact for a Layout. For a plain Geometry, an upper bound for all batches of this size.
        """

    def write(self, layout: Layout, batch: Array) -> None:
        """Write the whole of `batch`, which has the spec's type and the shape `shape(layout)`."""


@dataclass(frozen=True, slots=True)
class _OfRows:
    """A feed of shape [rows, *dims]; if it has the packed axis, [total, ...]."""

    spec: TensorSpec

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        return geometry.shape(self.spec)


@dataclass(frozen=True, slots=True)
class Joined(_OfRows):
    """The rows of a request input, padded with `pad`; or packed, if it has the packed axis."""

    pad: np.generic
    """An element of the spec's type; for BF16 its bits."""

    def write(self, layout: Layout, batch: Array) -> None:
        (pack if layout.packs(self.spec) else gather)(layout, self.spec, self.pad, batch)


@dataclass(frozen=True, slots=True)
class Mask(_OfRows):
    """1 where a row has data along all axes of the spec, 0 where there is padding."""

    def write(self, layout: Layout, batch: Array) -> None:
        axes = self.spec.axes
        if layout.full:
            batch.fill(1)
        elif layout.packs(self.spec):
            fill_packed_mask(layout, axes[0], batch)
        else:
            fill_mask(layout, axes, batch)


@dataclass(frozen=True, slots=True)
class Positions(_OfRows):
    """0, 1, 2, ... along the spec's one axis from the start of each row, 0 in padding."""

    def write(self, layout: Layout, batch: Array) -> None:
        fill = fill_packed_positions if layout.packs(self.spec) else fill_positions
        fill(layout, self.spec.axes[0], batch)


@dataclass(frozen=True, slots=True)
class Lengths(_OfRows):
    """The true length of each row along `axis`; the spec's dims are () or (1,)."""

    axis: str

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = layout.lengths[self.axis].reshape(batch.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A value that is the same in every execution, without a batch dimension."""

    spec: TensorSpec
    """All dims are fixed."""
    value: Array
    """The value in the shape of batches; without a batch dimension with a first dim of 1."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return [*dims], independent of the batch."""
        return self.value.shape

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = self.value


@dataclass(frozen=True, slots=True)
class State(_OfRows):
    """The states of sequences, all dims fixed; 0 without a sequence, and in padding."""

    def write(self, layout: Layout, batch: Array) -> None:
        for block, span in zip(layout.blocks, layout.spans, strict=True):
            batch[span] = 0 if block.state is None else block.state[self.spec.name]
        batch[layout.filled :] = 0


@dataclass(frozen=True, slots=True)
class Past(_OfRows):
    """The states of sequences that grow along PAST, written by a StateGroup of the executor.

    All other dims are fixed.
    """

    def write(self, layout: Layout, batch: Array) -> None:
        """Raise TypeError: the executor has no StateGroup."""
        raise TypeError(f"{self.spec.name}: found no group of states")


@dataclass(frozen=True, slots=True)
class PastMask(_OfRows):
    """0 in the padding before a row's past, 1 for the past and all later elements.

    The only dim is PAST, or a sum that begins with it.
    """

    def write(self, layout: Layout, batch: Array) -> None:
        padding = layout.extents[PAST] - layout.lengths[PAST]
        np.greater_equal(np.arange(batch.shape[1]), padding[:, None], out=batch)


@dataclass(frozen=True, slots=True)
class PositionsAfterPast(_OfRows):
    """The positions of a request's elements in its sequence: PAST, PAST + 1, ... in each row."""

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = np.arange(batch.shape[1])
        batch += layout.lengths[PAST][:, None].astype(batch.dtype)


@dataclass(frozen=True, slots=True)
class Offsets:
    """The start of each row along `axis` in joined rows, and the end of the last row.

    The spec's dims are ().
    """

    spec: TensorSpec
    axis: str

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return [rows + 1]."""
        return (geometry.rows + 1,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = layout.offsets(self.axis)


# Kinds of Triton's `batch_input`, named as in its model_config.proto. Each describes one request
# input, `source`. Counts are per request, over all its rows; shapes are per row. These rules are
# from the comments of BatchInput.Kind in model_config.proto, and for open questions from Triton's
# implementation (triton-inference-server/backend, src/backend_input_collector.cc). The shape
# follows from the kind: the dims of the spec are not used.
#
# Two rules are specific to this runtime. If rows have lengths, only their data is counted, not the
# whole tensor of the request. A row of padding, which Triton does not have, counts as a request of
# one row with length 1 along every axis.


@dataclass(frozen=True, slots=True)
class _OfSource:
    spec: TensorSpec
    source: TensorSpec


@dataclass(frozen=True, slots=True)
class ElementCount(_OfSource):
    """BATCH_ELEMENT_COUNT: the number of elements of each request."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        return (geometry.requests,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = layout.element_counts(self.source)


@dataclass(frozen=True, slots=True)
class AccumulatedElementCount(ElementCount):
    """BATCH_ACCUMULATED_ELEMENT_COUNT: the elements of each request and all earlier requests."""

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = np.cumsum(layout.element_counts(self.source))


@dataclass(frozen=True, slots=True)
class AccumulatedElementCountWithZero(_OfSource):
    """BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: the accumulated counts after a leading 0."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return [requests + 1]."""
        return (geometry.requests + 1,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[0] = 0
        batch[1:] = np.cumsum(layout.element_counts(self.source))


@dataclass(frozen=True, slots=True)
class MaxElementCountAsShape(_OfSource):
    """BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: the shape is the number of elements of the largest request.

    Triton leaves the content uninitialised. Here it is 0, so that no batch is visible in another.
    """

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return [elements]."""
        return (geometry.most_elements(self.source),)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = 0


@dataclass(frozen=True, slots=True)
class ItemShape(_OfSource):
    """BATCH_ITEM_SHAPE: the sizes of each row along the source's dimensions."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return [rows, dimensions]."""
        return (geometry.rows, len(self.source.dims))

    def write(self, layout: Layout, batch: Array) -> None:
        for position, dim in enumerate(self.source.dims):
            batch[:, position] = layout.lengths[dim] if isinstance(dim, str) else dim


@dataclass(frozen=True, slots=True)
class ItemShapeFlattened(_OfSource):
    """BATCH_ITEM_SHAPE_FLATTEN: the sizes of each row in one dimension, row after row."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return [rows x dimensions]."""
        return (geometry.rows * len(self.source.dims),)

    def write(self, layout: Layout, batch: Array) -> None:
        shapes = batch.reshape(layout.rows, len(self.source.dims))
        ItemShape(self.spec, self.source).write(layout, shapes)


def graph_shape(shape: tuple[int, ...], at: int | None) -> tuple[int, ...]:
    """Return the graph's shape for [rows, *dims]; the rows become dim `at`, or no dim for None."""
    rows, *dims = shape
    return tuple(dims if at is None else (*dims[:at], rows, *dims[at:]))


def rows_first(tensor: Array, at: int | None, rows: int) -> Array:
    """Return the graph's tensor as a view [rows, *dims]; a tensor without rows is repeated."""
    if at is None:
        return np.broadcast_to(tensor, (rows, *tensor.shape))
    return np.moveaxis(tensor, at, 0)


@dataclass(frozen=True, slots=True)
class RowsLater:
    """A feed for a graph input whose first dim is not the rows."""

    feed: Feed
    at: int
    """The dim of the rows, at least 1."""

    @property
    def spec(self) -> TensorSpec:
        return self.feed.spec

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return [*dims before, rows, *dims behind]."""
        return graph_shape(self.feed.shape(geometry), self.at)

    def write(self, layout: Layout, batch: Array) -> None:
        self.feed.write(layout, np.moveaxis(batch, self.at, 0))


@dataclass(frozen=True, slots=True)
class Shared:
    """A request input that the graph takes without rows, equal for all requests of a batch."""

    spec: TensorSpec
    """All dims are fixed."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return [*dims], independent of the batch."""
        return self.spec.shape({})

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = layout.blocks[0].tensors[self.spec.name][0]
