"""The port: what an engine promises to whoever executes batches on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.specs import Array, DType, Tensors


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output as the graph declares it, with the batch dimension if it has one."""

    name: str
    dtype: DType
    dims: tuple[int | None, ...] | None
    """None for a size that varies; None in place of all where not even the rank is known."""
    symbols: tuple[str | None, ...] = field(default=(), compare=False)
    """The graph's own name for each size that varies, None where it is fixed or has no name.

    Sizes of one name are equal in one execution of that graph; other graphs know nothing of it.
    As long as `dims`, or empty where the graph names no size.
    """

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

    def weights_bytes(self) -> int:
        """Bytes of the graph's weights and constants, counted in its file."""

    def intermediates(self, shapes: Mapping[str, tuple[int, ...]]) -> Intermediates | None:
        """What the graph holds while it runs on inputs of these shapes; all inputs, by name.

        From the graph alone: nothing is executed, and no tensor memory allocated. None where a
        package is missing that reads the graph.
        """

    def close(self) -> None:
        """Free the graph. Safe to call twice; `run` must not be called afterwards."""
