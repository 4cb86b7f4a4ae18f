"""Graph tensors whose rows do not lie along their first dim, and those without rows.

Everywhere else a batch is [rows, *dims]. Here it is turned into what the graph has, without a copy:
what is written are views with the rows first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ge_runtime.batching.feeds import Feed
from ge_runtime.batching.ragged import Geometry, Layout
from ge_runtime.specs import Array, TensorSpec


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
