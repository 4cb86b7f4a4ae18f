"""What stands for an optional input where a request lacks it. Arrays that take no memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ge_runtime.specs import Array, Number, TensorSpec


class Default:
    """One optional input of the size of any request. Immutable; safe from any thread."""

    def __init__(
        self,
        spec: TensorSpec,
        limits: Mapping[str, int],
        rows: int,
        value: Number,
        length_of: str | None = None,
    ) -> None:
        """spec: no UNKNOWN dims; rows: the most of a request; value: of all elements.

        length_of: the axis whose lengths the input holds; then the value is the axis' size.
        """
        shape = (rows, *spec.shape(limits))
        self._spec = spec
        self._length_of = length_of
        # Made once at its largest, and cut for each request: a third of broadcasting's time.
        self._largest: Array
        if length_of is None:
            self._largest = np.broadcast_to(spec.dtype.scalar(value), shape)
        else:
            sizes = np.arange(1 + limits[length_of], dtype=spec.dtype.numpy)
            self._largest = np.broadcast_to(
                sizes.reshape(-1, *[1] * len(shape)), (len(sizes), *shape)
            )

    def of(self, rows: int, sizes: Mapping[str, int]) -> Array:
        """[rows, *dims at these sizes], read-only: a view of one element."""
        largest = self._largest
        if self._length_of is not None:
            largest = largest[sizes[self._length_of]]
        return largest[(slice(rows), *map(slice, self._spec.shape(sizes)))]
