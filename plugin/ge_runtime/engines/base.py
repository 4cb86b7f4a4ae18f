"""The engine port: the interface that executes batches, and its optional extensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.specs import Array, DType, Tensors

if TYPE_CHECKING:
    from ge_runtime.devices import DeviceHealth

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The shapes of all inputs of a graph, by input name."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output as the graph declares it, including its batch dimension if it has one."""

    name: str
    dtype: DType
    dims: tuple[int | None, ...] | None
    """Sizes, None for a size that varies; None instead of the tuple if the rank is unknown."""
    symbols: tuple[str | None, ...] = field(default=(), compare=False)
    """The graph's symbol for each size that varies; None for fixed or unnamed sizes.

    Sizes with the same symbol are equal within one execution of this graph; symbols of different
    graphs are unrelated. Has the length of `dims`, or is empty if the graph names no size.
    """
    aipp: bool = field(default=False, compare=False)
    """True if the tensor is an image that AIPP in the model file converts to the graph's input."""

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.dtype.value}[...]"
        sizes = ",".join("*" if dim is None else str(dim) for dim in self.dims)
        return f"{self.dtype.value}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs and outputs of a graph."""

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]


class Engine(Protocol):
    """One open graph.

    Not thread-safe: at most one thread may use an engine at a time, unless a method says otherwise.
    """

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the graph."""

    @property
    def shapes(self) -> Sequence[Shapes] | None:
        """The sets of input shapes that the engine was compiled for, at least one.

        None if the engine accepts all shapes that fit its signature.
        """

    @property
    def lost(self) -> bool:
        """True if the engine cannot execute any more, because its device or its process is gone.

        Permanent, unless the engine executes in another process, which may be restarted. Callable
        from any thread; returns the last known state without contacting the device. A loss that is
        not known yet is detected by the next execution, which raises EngineLost.
        """

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Allocate what executions need besides their inputs and outputs.

        Must be called before the first execution. A second call replaces the earlier allocation.

        Args:
            largest: Input shapes to prepare for. An execution fits if the shapes of one entry are
                at least as large in every size.
            memory: Host memory for tensors that the engine keeps between its steps, for as long as
                the engine is open.

        Raises:
            OutOfMemory: There is not enough memory.
        """

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """Execute the graph once. Blocks until the results are in memory.

        Args:
            inputs: All graph inputs by name: C-contiguous arrays of the graph's types. They are
                not modified.
            outputs: The requested outputs by name. An array must be C-contiguous and have exactly
                the type and shape of the result; it is written in place. For None the engine
                allocates the result.

        Returns:
            The requested outputs by name; arrays that were passed are the same objects.

        Raises:
            EngineFault: The execution failed. The content of the output arrays is undefined.
            OutOfMemory: The execution needs more memory than there is.
            EngineLost: The engine is lost (see `lost`).
        """

    def weights_bytes(self) -> int:
        """Return the size of the graph's weights and constants in its file, in bytes."""

    def device_io_bytes(self) -> int | None:
        """Return the size of the input and output buffers on the device, in bytes.

        Returns:
            0 if the engine works on its callers' arrays; None if the buffers are as large as the
            planned inputs and outputs of the largest execution.
        """

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        """Return the intermediate results of an execution, by analysing the graph.

        Nothing is executed, and no tensor memory is allocated.

        Args:
            shapes: The shapes of all inputs.

        Returns:
            Sizes and lifetimes; None if a package that reads the graph is not installed.
        """

    def close(self) -> None:
        """Free the graph. Safe to call twice; `run` must not be called afterwards."""


class LibraryEngine:
    """Base of engines whose library executes in this process, on inputs of any shapes."""

    def __init__(self, signature: Signature, health: DeviceHealth | None = None) -> None:
        """Initialize the base; `health` is the device's, if the device can be lost."""
        self._signature = signature
        self._health = health

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def shapes(self) -> None:
        """None: any shapes."""

    @property
    def lost(self) -> bool:
        return self._health is not None and self._health.lost is not None

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Do nothing: the library allocates what it needs."""


@runtime_checkable
class Limited(Protocol):
    """Extension of `Engine` for engines whose memory or work is not completely planned.

    For example, an engine that compiles while serving needs seconds to minutes for it.
    """

    @property
    def compiles_each_shape(self) -> bool:
        """True if each new set of shapes is compiled at its first execution.

        Such an engine needs gears for every axis.
        """

    @property
    def unplanned(self) -> Sequence[str]:
        """Memory and work that the plan does not contain, as lines of text."""


@runtime_checkable
class Perturbable(Protocol):
    """Extension of `Engine` for engines that can open their graph with different rounding."""

    def perturbed(self, seed: int) -> Engine | None:
        """Open the graph again on the CPU, with other kernels and other last bits of its weights.

        Answers of the two engines differ only by rounding. The caller closes the new engine.

        Args:
            seed: Selects the bits.

        Returns:
            The new engine; None if this graph has no variant.

        Raises:
            ArtifactFault: The variant cannot be opened.
        """


@runtime_checkable
class Estimating(Protocol):
    """Extension of `Engine` for engines that estimate the work of an execution from the graph."""

    def flops(self, shapes: Shapes) -> int | None:
        """Estimate the floating-point operations of an execution with inputs of these shapes.

        Nothing is executed. Returns None if a package that reads the graph is not installed.
        """


@runtime_checkable
class Unpadding(Protocol):
    """Extension of `Engine` for engines whose graph may skip padding."""

    @property
    def unpadded(self) -> bool:
        """True if the graph removes padding: see `ge_runtime.rewriting.unpad`."""


@runtime_checkable
class AdaptsThreads(Protocol):
    """Extension of `Engine` for engines that can execute small batches on one thread."""

    def adapt_threads(self, largest: Shapes) -> str:
        """Choose the threads of each later execution by its work, as computed from the graph.

        Args:
            largest: The input shapes of the largest execution.

        Returns:
            The decision, for the report; empty if all executions use all threads.

        Raises:
            ArtifactFault: The graph cannot be opened again.
        """


class WorkspaceArena(Protocol):
    """The memory in which a library allocates the workspace of all its engines in this process."""

    def join(self, member: object, most_bytes: int) -> None:
        """Register a member, or change its limit.

        Args:
            member: Any object that identifies the engine.
            most_bytes: Upper bound of the workspace of one execution of the member.
        """

    def release(self, member: object) -> None:
        """Unregister a member, which executes no more. Safe to call twice."""

    def execution(self, about_bytes: int) -> AbstractContextManager[None]:
        """Return the context in which an execution must run. It may be entered many times.

        Args:
            about_bytes: Estimated workspace of the execution; 0 if it is unknown.
        """

    def measure(self, execute: Callable[[], object], about_bytes: int) -> int | None:
        """Execute once, and measure the workspace that was used.

        Blocks other executions in the arena. Raises what `execute` raises, and OutOfMemory.

        Args:
            execute: Executes once.
            about_bytes: Estimated workspace.

        Returns:
            The workspace in bytes; None if it cannot be measured.
        """

    @property
    def resident_bytes(self) -> int | None:
        """Bytes of the arena that executions have touched; None if that is unknown."""


@runtime_checkable
class InArena(Protocol):
    """Extension of `Engine` for engines whose workspace is in an arena with other engines."""

    @property
    def arena(self) -> WorkspaceArena | None:
        """The arena; None if this engine does not use one."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """A batch whose rows are in device memory, each at its own address."""

    shape: tuple[int, ...]
    """[rows, *dims]"""
    dtype: np.dtype[Any]
    places: Sequence[int]
    """Addresses of the first rows, at least one.

    The remaining rows are padding: copies of these rows in an input, discarded in an output.
    """

    @property
    def row_bytes(self) -> int:
        """The size of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@runtime_checkable
class TakesRows(Protocol):
    """Extension of `Engine` for engines that can read and write rows in device memory."""

    def run_rows(
        self,
        inputs: Mapping[str, Array | DeviceRows],
        outputs: Mapping[str, Array | DeviceRows | None],
    ) -> dict[str, Array]:
        """Execute the graph once, like `Engine.run`, with some tensors in device memory.

        Args:
            inputs: All graph inputs by name.
            outputs: The requested outputs by name; `DeviceRows` stay on the device.

        Returns:
            The requested outputs that do not stay on the device.
        """


@runtime_checkable
class Remote(Protocol):
    """Extension of `Engine` for engines in another process that serves several clients."""

    def reserve(self, nbytes: int) -> None:
        """Allocate memory for outputs whose targets the other process cannot write to. Call once.

        Args:
            nbytes: Planned size of the outputs of the largest execution.

        Raises:
            OutOfMemory: There is not enough memory.
        """

    def expect_rows(self, filled: int) -> None:
        """Set the number of rows of the next execution that belong to requests.

        The remaining rows are padding.
        """

    def waiting(
        self, within: Callable[[], float], gone: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        """Return a context that bounds how long executions may wait in the other process's queue.

        Within the context, `Engine.run` raises Expired when the time is over, and Cancelled when
        `gone` returns True.

        Args:
            within: Returns the remaining seconds; called before each execution.
            gone: Returns True if the results are no longer needed; called from time to time while
                an execution waits.
        """
