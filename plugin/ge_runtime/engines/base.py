"""The engine port: what all engines offer to the code that executes batches on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device
from ge_runtime.devices.health import DeviceHealth
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.specs import Array, DType, Tensors

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The shapes of all inputs of a graph, by name."""


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
    aipp: bool = field(default=False, compare=False)
    """Whether it is an image, of which the file makes what its graph takes."""

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

    @property
    def shapes(self) -> Sequence[Shapes] | None:
        """The only shapes of inputs that it can execute, at least one; None: any that fit."""

    @property
    def lost(self) -> bool:
        """Whether it can execute nothing: its device, or the process that executes, is gone.

        For good, unless that is another process, which may be started again. From any thread, at
        once: nothing is asked. Until it is known, executions find out, and raise EngineLost.
        """

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Have what executions need besides their inputs and outputs, before the first of them.

        largest: an execution fits if one of these is as large in every size. memory: for what the
        engine keeps on the host between its steps, for as long as it is open. Called again, it
        replaces what was had before.
        Raises OutOfMemory.
        """

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """Execute the graph once; blocks until the results are in memory.

        inputs: every graph input, C-contiguous, of the graph's types; only read.
        outputs: those wanted. An array, C-contiguous, is written in place and must have exactly
        the type and shape of the result; for None the engine allocates.
        Returns the wanted outputs; those given as arrays are the same objects.
        Raises EngineFault, after which the content of given arrays is undefined; EngineLost, at
        once if it is lost.
        """

    def weights_bytes(self) -> int:
        """Bytes of the graph's weights and constants, counted in its file."""

    def device_io_bytes(self) -> int | None:
        """Bytes of inputs and outputs on its device; 0 where it works on those of its callers.

        None: as many as the inputs and outputs of the largest execution take as they are planned.
        """

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        """What the graph holds while it runs on inputs of these shapes; all inputs, by name.

        From the graph alone: nothing is executed, and no tensor memory allocated. None where a
        package is missing that reads the graph.
        """

    def close(self) -> None:
        """Free the graph. Safe to call twice; `run` must not be called afterwards."""


class LibraryEngine:
    """What engines have in common whose library executes in this process, inputs of any shapes."""

    def __init__(self, signature: Signature, health: DeviceHealth | None = None) -> None:
        """health: of the device, if it can be lost: then the engine is, whoever found that out."""
        self._signature = signature
        self._health = health

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def shapes(self) -> None:
        """Any."""

    @property
    def lost(self) -> bool:
        return self._health is not None and self._health.lost is not None

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Nothing is to be had: the library allocates what it needs."""


@runtime_checkable
class Limited(Protocol):
    """What an engine tells besides that cannot promise all of a plan.

    One that compiles while it runs takes seconds to minutes for a graph's first execution.
    """

    @property
    def compiles_each_shape(self) -> bool:
        """Whether it compiles at the first execution of each set of shapes: none may be free."""

    @property
    def unplanned(self) -> Sequence[str]:
        """What of its memory and work is in no plan, a line each, for people."""


class WorkspaceArena(Protocol):
    """Where a library allocates the workspace of all its engines in this process."""

    def join(self, member: object, most_bytes: int) -> None:
        """No execution of `member` takes more than this; replaces what it said before."""

    def release(self, member: object) -> None:
        """The member executes no more. Safe to call twice."""

    def execution(self, about_bytes: int) -> AbstractContextManager[None]:
        """Around an execution that takes about this much, 0 if nobody can tell."""

    def measure(self, execute: Callable[[], object], about_bytes: int) -> int | None:
        """The bytes that one execution takes there; None if nobody can tell.

        about_bytes: a guess. Others wait meanwhile. Raises what it raises.
        """

    @property
    def resident_bytes(self) -> int | None:
        """What executions have touched of it; None if nobody can tell."""


@runtime_checkable
class InArena(Protocol):
    """What an engine tells besides whose workspace lies in an arena that others execute in, too."""

    @property
    def arena(self) -> WorkspaceArena | None:
        """None if it has none, after all."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """A batch of an execution whose rows lie on the device, each at a place of its own."""

    shape: tuple[int, ...]
    """[rows, *dims]"""
    dtype: np.dtype[Any]
    places: Sequence[int]
    """Addresses of its first rows, at least one. The others are padding: of an input these rows
    once more, and of an output lost."""

    @property
    def row_bytes(self) -> int:
        """Of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@runtime_checkable
class TakesRows(Protocol):
    """What an engine does besides that reaches rows on its device."""

    def run_rows(
        self,
        inputs: Mapping[str, Array | DeviceRows],
        outputs: Mapping[str, Array | DeviceRows | None],
    ) -> dict[str, Array]:
        """As `run`; returns no outputs that are left on the device."""


@runtime_checkable
class Remote(Protocol):
    """What an engine tells besides that executes in another process, among others' executions."""

    def reserve(self, nbytes: int) -> None:
        """Have memory for outputs that are wanted where that process cannot write. Once.

        nbytes: what those of the largest execution take as they are planned. Raises OutOfMemory.
        """

    def expect_rows(self, filled: int) -> None:
        """So many rows of the next execution are requests', and the rest padding."""

    def waiting(
        self, within: Callable[[], float], gone: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        """For the length of a `with`, how long executions may wait for their turn.

        within: the seconds left, asked before each. gone: whether nobody wants the results any
        more, asked now and then while one waits. `run` then raises Expired or Cancelled.
        """
