"""The graph inputs that a batch consists of: joined from requests, or generated for them.

A feed knows the tensor that the graph takes and how to write it for one batch. Frozen values,
safe from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ge_runtime.batching.ragged import Layout, fill_mask, gather
from ge_runtime.specs import Array, TensorSpec


class Feed(Protocol):
    """One graph input."""

    @property
    def spec(self) -> TensorSpec:
        """The tensor that the graph takes, without the batch dimension."""

    def write(self, layout: Layout, batch: Array) -> None:
        """Write all of `batch`, [rows, *spec's dims at the layout's extents]."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows of a request input, padded with `pad`."""

    spec: TensorSpec
    pad: np.generic
    """Of the spec's type."""

    def write(self, layout: Layout, batch: Array) -> None:
        """See Feed."""
        gather(layout, self.spec, self.pad, batch)


@dataclass(frozen=True, slots=True)
class Mask:
    """1 where a row has data along all axes of the spec, 0 where there is padding."""

    spec: TensorSpec

    def write(self, layout: Layout, batch: Array) -> None:
        """See Feed."""
        fill_mask(layout, self.spec.axes, batch)


@dataclass(frozen=True, slots=True)
class Lengths:
    """The true length of each row along `axis`; the spec's dims are () or (1,)."""

    spec: TensorSpec
    axis: str

    def write(self, layout: Layout, batch: Array) -> None:
        """See Feed."""
        batch[...] = layout.lengths[self.axis].reshape(batch.shape)
