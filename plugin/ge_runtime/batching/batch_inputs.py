"""The feeds that Triton's `batch_input` asks for, by the kinds of its model_config.proto.

Each describes one request input, the source. Counts are per request, its rows together; shapes
are per row. So say the comments of BatchInput.Kind in model_config.proto, and where they leave it
open, Triton's implementation (triton-inference-server/backend, src/backend_input_collector.cc).
The shape follows from the kind: the dims of the spec are not read.

Two things are this runtime's own. Where rows have lengths of their own, what counts is their
data, not the request's tensor. And a row of padding, which Triton does not know, is a request of
one row that has length 1 along every axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ge_runtime.batching.ragged import Geometry, Layout
from ge_runtime.specs import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class _Described:
    spec: TensorSpec
    source: TensorSpec


@dataclass(frozen=True, slots=True)
class ElementCount(_Described):
    """BATCH_ELEMENT_COUNT: the elements of each request."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        return (geometry.requests,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = layout.element_counts(self.source)


@dataclass(frozen=True, slots=True)
class AccumulatedElementCount(_Described):
    """BATCH_ACCUMULATED_ELEMENT_COUNT: the elements of each request and of all before it."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        return (geometry.requests,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = np.cumsum(layout.element_counts(self.source))


@dataclass(frozen=True, slots=True)
class AccumulatedElementCountWithZero(_Described):
    """BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: the same after a leading 0."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [requests + 1]."""
        return (geometry.requests + 1,)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[0] = 0
        batch[1:] = np.cumsum(layout.element_counts(self.source))


@dataclass(frozen=True, slots=True)
class MaxElementCountAsShape(_Described):
    """BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: the elements of the largest request, told by the shape.

    Triton leaves the content uninitialised. Here it is 0, so that no batch shows in another.
    """

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [elements]."""
        return (geometry.most_elements(self.source),)

    def write(self, layout: Layout, batch: Array) -> None:
        batch[...] = 0


@dataclass(frozen=True, slots=True)
class ItemShape(_Described):
    """BATCH_ITEM_SHAPE: the sizes of each row along the source's dimensions."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows, dimensions]."""
        return (geometry.rows, len(self.source.dims))

    def write(self, layout: Layout, batch: Array) -> None:
        for position, dim in enumerate(self.source.dims):
            batch[:, position] = layout.lengths[dim] if isinstance(dim, str) else dim


@dataclass(frozen=True, slots=True)
class ItemShapeFlattened(_Described):
    """BATCH_ITEM_SHAPE_FLATTEN: the same in one dimension, row after row."""

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape [rows x dimensions]."""
        return (geometry.rows * len(self.source.dims),)

    def write(self, layout: Layout, batch: Array) -> None:
        shapes = batch.reshape(layout.rows, len(self.source.dims))
        ItemShape(self.spec, self.source).write(layout, shapes)
