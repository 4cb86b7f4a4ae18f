"""The graph inputs that a batch consists of: joined from requests, or generated for them.

A feed knows the tensor that the graph takes, its shape in a batch, and how to write it. Frozen
values, safe from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ge_runtime.batching.packing import fill_packed_mask, fill_packed_positions, pack
from ge_runtime.batching.ragged import Geometry, Layout, fill_mask, fill_positions, gather
from ge_runtime.specs import Array, TensorSpec


class Feed(Protocol):
    """One graph input."""

    @property
    def spec(self) -> TensorSpec:
        """The tensor that the graph takes, without the batch dimension."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """The tensor's shape in a batch, batch dimension included.

        Exact for a Layout. For a mere Geometry no batch of this size has a larger one.
        """

    def write(self, layout: Layout, batch: Array) -> None:
        """Write all of `batch`, of the spec's type and of `shape(layout)`."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows of a request input, padded with `pad`; or packed, if it has the packed axis."""

    spec: TensorSpec
    pad: np.generic
    """Of the spec's type; for BF16 its bits."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows, *dims], packed [*dims]."""
        return geometry.shape(self.spec)

    def write(self, layout: Layout, batch: Array) -> None:
        (pack if layout.packs(self.spec) else gather)(layout, self.spec, self.pad, batch)


@dataclass(frozen=True, slots=True)
class Mask:
    """1 where a row has data along all axes of the spec, 0 where there is padding."""

    spec: TensorSpec

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows, *axes], packed [total]."""
        return geometry.shape(self.spec)

    def write(self, layout: Layout, batch: Array) -> None:
        if layout.packs(self.spec):
            fill_packed_mask(layout, self.spec.axes[0], batch)
        else:
            fill_mask(layout, self.spec.axes, batch)


@dataclass(frozen=True, slots=True)
class Positions:
    """0, 1, 2, ... along the spec's one axis from the start of each row, 0 in padding."""

    spec: TensorSpec

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows, axis], packed [total]."""
        return geometry.shape(self.spec)

    def write(self, layout: Layout, batch: Array) -> None:
        fill = fill_packed_positions if layout.packs(self.spec) else fill_positions
        fill(layout, self.spec.axes[0], batch)


@dataclass(frozen=True, slots=True)
class Lengths:
    """The true length of each row along `axis`; the spec's dims are () or (1,)."""

    spec: TensorSpec
    axis: str

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows] or [rows, 1]."""
        return geometry.shape(self.spec)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = layout.lengths[self.axis].reshape(batch.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """The same value in every execution, without a batch dimension."""

    spec: TensorSpec
    """Its dims are all fixed."""
    value: Array
    """In the shape that batches have: where these have no rows, after a first dim of 1."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [*dims], whatever the batch."""
        return self.value.shape

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = self.value


@dataclass(frozen=True, slots=True)
class State:
    """What the sequences of requests left behind; 0 for requests without one, and in padding."""

    spec: TensorSpec
    """Its dims are all fixed."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows, *dims]."""
        return geometry.shape(self.spec)

    def write(self, layout: Layout, batch: Array) -> None:
        for block, span in zip(layout.blocks, layout.spans, strict=True):
            batch[span] = 0 if block.state is None else block.state[self.spec.name]
        batch[layout.filled :] = 0


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where each row begins along `axis` if rows lie one after the other, and where all end.

    The spec's dims are ().
    """

    spec: TensorSpec
    axis: str

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows + 1]."""
        return (geometry.rows + 1,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = layout.offsets(self.axis)


# What Triton's `batch_input` asks for, by the kinds of its model_config.proto. Each describes one
# request input, the source. Counts are per request, its rows together; shapes are per row. So say
# the comments of BatchInput.Kind in model_config.proto, and where they leave it open, Triton's
# implementation (triton-inference-server/backend, src/backend_input_collector.cc). The shape
# follows from the kind: the dims of the spec are not read.
#
# Two things are this runtime's own. Where rows have lengths of their own, what counts is their
# data, not the request's tensor. And a row of padding, which Triton does not know, is a request of
# one row that has length 1 along every axis.


@dataclass(frozen=True, slots=True)
class _OfSource:
    spec: TensorSpec
    source: TensorSpec


@dataclass(frozen=True, slots=True)
class ElementCount(_OfSource):
    """BATCH_ELEMENT_COUNT: the elements of each request."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        return (geometry.requests,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = layout.element_counts(self.source)


@dataclass(frozen=True, slots=True)
class AccumulatedElementCount(_OfSource):
    """BATCH_ACCUMULATED_ELEMENT_COUNT: the elements of each request and of all before it."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        return (geometry.requests,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = np.cumsum(layout.element_counts(self.source))


@dataclass(frozen=True, slots=True)
class AccumulatedElementCountWithZero(_OfSource):
    """BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: the same after a leading 0."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [requests + 1]."""
        return (geometry.requests + 1,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[0] = 0
        batch[1:] = np.cumsum(layout.element_counts(self.source))


@dataclass(frozen=True, slots=True)
class MaxElementCountAsShape(_OfSource):
    """BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: the elements of the largest request, told by the shape.

    Triton leaves the content uninitialised. Here it is 0, so that no batch shows in another.
    """

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [elements]."""
        return (geometry.most_elements(self.source),)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = 0


@dataclass(frozen=True, slots=True)
class ItemShape(_OfSource):
    """BATCH_ITEM_SHAPE: the sizes of each row along the source's dimensions."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows, dimensions]."""
        return (geometry.rows, len(self.source.dims))

    def write(self, layout: Layout, batch: Array) -> None:
        for position, dim in enumerate(self.source.dims):
            batch[:, position] = layout.lengths[dim] if isinstance(dim, str) else dim


@dataclass(frozen=True, slots=True)
class ItemShapeFlattened(_OfSource):
    """BATCH_ITEM_SHAPE_FLATTEN: the same in one dimension, row after row."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows x dimensions]."""
        return (geometry.rows * len(self.source.dims),)

    def write(self, layout: Layout, batch: Array) -> None:
        shapes = batch.reshape(layout.rows, len(self.source.dims))
        ItemShape(self.spec, self.source).write(layout, shapes)


def turned(shape: tuple[int, ...], at: int | None) -> tuple[int, ...]:
    """The graph's shape of a tensor of shape [rows, *dims], whose rows are its dim `at`."""
    rows, *dims = shape
    return tuple(dims if at is None else (*dims[:at], rows, *dims[at:]))


def rows_first(tensor: Array, at: int | None, rows: int) -> Array:
    """The graph's tensor as [rows, *dims], a view; without rows of its own, equal for all."""
    if at is None:
        return np.broadcast_to(tensor, (rows, *tensor.shape))
    return np.moveaxis(tensor, at, 0)


@dataclass(frozen=True, slots=True)
class Turned:
    """A feed whose rows the graph has along a later dim than the first."""

    feed: Feed
    at: int
    """The dim, from 1."""

    @property
    def spec(self) -> TensorSpec:
        return self.feed.spec

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [*dims before, rows, *dims behind]."""
        return turned(self.feed.shape(geometry), self.at)

    def write(self, layout: Layout, batch: Array) -> None:
        self.feed.write(layout, np.moveaxis(batch, self.at, 0))


@dataclass(frozen=True, slots=True)
class Shared:
    """A request input that the graph takes without rows: equal for all requests of a batch."""

    spec: TensorSpec
    """Its dims are all fixed."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [*dims], whatever the batch."""
        return self.spec.shape({})

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = layout.blocks[0].tensors[self.spec.name][0]
