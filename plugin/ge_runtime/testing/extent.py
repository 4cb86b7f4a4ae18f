"""How large a request is, and where in its tensors the data lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ge_runtime.relations import Relation
from ge_runtime.specs import TensorSpec


@dataclass(frozen=True, slots=True)
class Extent:
    """The rows of a request, the sizes of its tensors, and how far its rows reach."""

    rows: int
    sizes: Mapping[str, int]
    """Axis: its size in the request's tensors."""
    ends: Mapping[str, Sequence[int]]
    """Every axis: where the data of each row ends."""

    def ends_of(self, row: int) -> dict[str, int]:
        """Axis: where the data of this row ends."""
        return {axis: ends[row] for axis, ends in self.ends.items()}

    def inside(self, spec: TensorSpec) -> NDArray[np.bool_]:
        """Where a tensor holds data: broadcasts with its [rows, *dims]."""
        result = np.ones((self.rows, *[1] * len(spec.dims)), np.bool_)
        for at, dim in enumerate(spec.dims, start=1):
            if not isinstance(dim, int):
                places = np.arange(_size(dim, self.sizes))
                ends = np.array([_size(dim, self.ends_of(row)) for row in range(self.rows)])
                along = [1] * result.ndim
                along[at] = -1
                column = ends.reshape(-1, *[1] * len(spec.dims))
                result = result & (places.reshape(along) < column)
        return result

    def __str__(self) -> str:
        words = [f"{self.rows} row(s)", *(f"{axis} {size}" for axis, size in self.sizes.items())]
        words += [
            f"rows end at {axis} {', '.join(map(str, ends))}"
            for axis, ends in self.ends.items()
            if any(end < self.sizes[axis] for end in ends)
        ]
        return ", ".join(words)


def _size(dim: str | Relation, sizes: Mapping[str, int]) -> int:
    return sizes[dim] if isinstance(dim, str) else dim.size(sizes)
