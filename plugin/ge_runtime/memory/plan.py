"""Where each tensor of the largest batch lies in one arena: integers only, no byte is touched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ge_runtime.specs import DType, TensorSpec

ALIGNMENT: Final = 64
"""Bytes. A cache line, and the widest vector register of the CPUs that engines use."""


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes [offset, offset + nbytes) of an arena, set aside for one tensor."""

    label: str
    dtype: DType
    shape: tuple[int, ...]
    """The largest shape that is ever asked for, rows first."""
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Disjoint aligned regions for the inputs and outputs of a graph, by tensor name."""

    inputs: Mapping[str, Region]
    outputs: Mapping[str, Region]
    total_bytes: int

    @classmethod
    def of(
        cls,
        inputs: Iterable[TensorSpec],
        outputs: Iterable[TensorSpec],
        *,
        rows: int,
        limits: Mapping[str, int],
    ) -> MemoryPlan:
        """The plan for batches of up to `rows` rows with axes of up to `limits`.

        All specs: numbers, and no UNKNOWN dims. All regions are live during an execution, so
        none share bytes; the total is the sum of their sizes, each rounded up to ALIGNMENT.
        """
        end = 0

        def place(kind: str, spec: TensorSpec) -> Region:
            nonlocal end
            shape = (rows, *spec.shape(limits))
            nbytes = math.prod(shape) * spec.dtype.numpy.itemsize
            region = Region(f"{kind} {spec.name}", spec.dtype, shape, end, nbytes)
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
            return region

        return cls(
            inputs={spec.name: place("input", spec) for spec in inputs},
            outputs={spec.name: place("output", spec) for spec in outputs},
            total_bytes=end,
        )

    def table(self) -> list[str]:
        """The plan for people: one line per region, then the total."""
        regions = [*self.inputs.values(), *self.outputs.values()]
        cells = [
            (region.label, f"{region.dtype.value}{list(region.shape)}", f"{region.nbytes:,}")
            for region in regions
        ]
        cells.append(("total, aligned", "", f"{self.total_bytes:,}"))
        left, middle, right = (max(map(len, column)) for column in zip(*cells, strict=True))
        return [f"{a:<{left}}  {b:<{middle}}  {c:>{right}} bytes" for a, b, c in cells]
