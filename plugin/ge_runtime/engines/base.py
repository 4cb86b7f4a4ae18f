"""The port: what an engine promises to whoever executes batches on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ge_runtime.specs import Array, DType, Tensors


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output as the graph declares it, with the batch dimension if it has one."""

    name: str
    dtype: DType
    dims: tuple[int | None, ...] | None
    """None for a size that varies; None in place of all where not even the rank is known."""

    def __str__(self) -> str:
        dims = ("*" if dim is None else str(dim) for dim in self.dims or ())
        return f"{self.dtype.value}[{'...' if self.dims is None else ','.join(dims)}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs and outputs of a graph."""

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]


class Engine(Protocol):
    """One open graph. Used by one thread at a time."""

    @property
    def signature(self) -> Signature:
        """What the graph takes and gives."""

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """Execute the graph once; blocks until the results are in memory.

        inputs: every graph input, C-contiguous, of the graph's types; only read.
        outputs: those wanted. An array, C-contiguous, is written in place and must have exactly
        the type and shape of the result; for None the engine allocates.
        Returns the wanted outputs; those given as arrays are the same objects.
        Raises EngineFault, after which the content of given arrays is undefined.
        """

    def close(self) -> None:
        """Free the graph. Safe to call twice; `run` must not be called afterwards."""
