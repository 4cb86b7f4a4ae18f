"""An executor of one graph in a session of GE on a card, with its arena and stream.

After a failed execution, a new session on a new stream compiles the graph again. The context stays
the same, because sessions only accept streams of the device's default context.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.devices import Device
from ge_runtime.errors import ArtifactFault, EngineFault, EngineLost
from ge_runtime.memory.lifetimes import Suballocator
from ge_runtime.npu.driver.cann_values import ACL_DTYPES, DriverFault, FailureKind
from ge_runtime.npu.driver.device import AscendDevice
from ge_runtime.npu.driver.driver import Address
from ge_runtime.npu.driver.installation import GeProcess, GePy, Graph, Session
from ge_runtime.npu.driver.memory import part_bytes
from ge_runtime.specs import Array, DType

# GE-PY's objects, which have no type stubs.
GeAllocator: TypeAlias = Any
GeTensor: TypeAlias = Any
MemBlock: TypeAlias = Any

UNSUPPORTED_DTYPES: Final = (DType.FP64, DType.BF16)
"""Types of Triton that GE-PY's tensors do not support, in addition to BYTES."""

_GRAPH: Final = 0
"""The number of the session's only graph."""

_GE_TYPE_NUMBERS: Final = {
    dtype.numpy: number for number, dtype in ACL_DTYPES.items() if dtype not in UNSUPPORTED_DTYPES
}
"""GE's type numbers by NumPy type."""

_SAME_SIZE_INTEGERS: Final = {
    np.dtype(own).itemsize: np.dtype(own) for own in (np.uint8, np.int16, np.int32, np.int64)
}
"""The integer types as which elements are read, by the bytes of an element."""

_KEPT_ALIVE: Final[list[object]] = []
"""Objects with memory on lost cards, kept until the process ends: freeing them may hang."""

ALIGNMENT: Final = 512
"""Alignment in bytes of GE's own allocations; the documentation requires none."""

_log = logging.getLogger(__name__)


class ArenaPool:
    """An allocator of blocks in one buffer on a card, for a library that allocates while executing.

    Blocks are aligned to ALIGNMENT. Thread-safe.
    """

    def __init__(self, start: Address, nbytes: int) -> None:
        """Manage [start, start + nbytes), which has at least ALIGNMENT bytes after alignment."""
        self._base = -(-start // ALIGNMENT) * ALIGNMENT
        self._suballocator = Suballocator(start + nbytes - self._base)
        self._lock = Lock()
        self.peak_bytes = 0
        """Maximum number of bytes in use so far."""
        self.refused = 0
        """Number of failed allocations: the arena is too small."""

    @property
    def used_bytes(self) -> int:
        """Bytes in use, including alignment and the padding of `part_bytes`."""
        return self._suballocator.capacity - self._suballocator.free_bytes

    def allocate(self, nbytes: int) -> Address:
        """Allocate a block. Raises MemoryError if there is no free range of that size."""
        needed = part_bytes(max(1, nbytes))
        with self._lock:
            offset = self._suballocator.allocate(needed, ALIGNMENT)
            if offset is None:
                self.refused += 1
                free, capacity = self._suballocator.largest_free, self._suballocator.capacity
                raise MemoryError(
                    f"found {nbytes:,} bytes wanted, expected at most {free:,} in one piece, "
                    f"of {capacity:,}"
                )
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return Address(self._base + offset)

    def free(self, address: Address) -> None:
        """Free a block. Raises ValueError if it was not allocated, or freed before."""
        with self._lock:
            self._suballocator.free(address - self._base)


def allocator_over(pool: ArenaPool, allocators: GePy) -> GeAllocator:
    """Create a `ge.allocator.Allocator` that allocates from the pool.

    GE calls it from its own threads, and treats an exception as a failed allocation.

    Args:
        pool: The pool.
        allocators: The module ge.allocator.
    """
    # GE identifies blocks by object identity, so they are referenced until they are freed.
    held: dict[int, MemBlock] = {}

    def malloc(_: GeAllocator, size: int) -> MemBlock:
        block = allocators.MemBlock(pool.allocate(size), size)
        held[id(block)] = block
        return block

    def free(_: GeAllocator, block: MemBlock) -> None:
        del held[id(block)]
        pool.free(Address(block.addr))

    return type("ArenaAllocator", (allocators.Allocator,), {"malloc": malloc, "free": free})()


class GeSessionExecutor:
    """Executes one graph in a session of GE. Not thread-safe."""

    def __init__(
        self,
        name: str,
        device: AscendDevice,
        memory: Device[Address],
        ge: GeProcess,
        read: Callable[[], Graph],
        *,
        arena_bytes: int,
        session_options: Mapping[str, str],
        graph_options: Mapping[str, str],
    ) -> None:
        """Open the session.

        Args:
            name: The graph's name in messages.
            device: The card.
            memory: The card's memory, for the arena.
            ge: GE of this process.
            read: Reads the graph. Called for each session; raises GE's RuntimeError, or
                ArtifactFault.
            arena_bytes: Size of the arena for results and workspace.
            session_options: GE's options of a session.
            graph_options: GE's options of a graph.

        Raises:
            RuntimeError: GE failed.
            ArtifactFault: The file has changed.
            OutOfMemory: The card has not enough memory.
            DriverFault: A call of the driver failed.
            EngineLost: The card is lost.
        """
        self._name = name
        self._device = device
        self._ge = ge
        self._read = read
        self._session_options = session_options
        self._graph_options = graph_options
        self._session: Session = None
        self._allocator: GeAllocator = None
        """Kept alive while it is registered, as GE's documentation requires."""
        self._failure: str | None = None
        """The failure of the last execution, if it invalidated the session and its stream."""
        with ExitStack() as undo, device.detecting_loss():
            device.ensure_available()
            self._arena = memory.allocate("GE arena", arena_bytes)
            undo.callback(self._arena.free)
            self.pool = ArenaPool(self._arena.memory, arena_bytes)
            self._context = device.default_context()
            undo.callback(self._unless_lost, self._context.destroy)
            ge.enter(device.number)
            undo.callback(self._unless_lost, ge.leave)
            with self._context.current():
                self._open_session(read())
            undo.pop_all()

    @property
    def arena_bytes(self) -> int:
        """Size of the memory for results and workspace."""
        return self._arena.nbytes

    def execute(self, arrays: Sequence[Array], dtypes: Sequence[DType]) -> list[Array]:
        """Execute the graph and wait. The first call, and one after a failure, compile the graph.

        Args:
            arrays: The inputs, in the graph's order.
            dtypes: The types of the results, in the graph's order.

        Returns:
            The results, in the graph's order.

        Raises:
            RuntimeError, ValueError: GE failed.
            DriverFault: The execution failed.
            EngineLost: The card is lost.
            EngineFault: The graph must be compiled again, but its file has changed.
        """
        self._device.ensure_available()
        with self._context.current():
            if self._failure is not None:
                self._reset()
            return self._execute(arrays, dtypes)

    def _execute(self, arrays: Sequence[Array], dtypes: Sequence[DType]) -> list[Array]:
        inputs: list[GeTensor] = []
        results: list[GeTensor] = []
        try:
            try:
                inputs.extend(map(self._to_device, arrays))
                results.extend(
                    self._session.run_graph_with_stream_async(_GRAPH, self._stream, inputs)
                )
            finally:
                # Also after an error: queued tasks use the tensors until they are done, and GE's
                # errors do not contain whether the card is lost. Each execution must wait, because
                # the driver reports a failed task once, at the next wait for the task's stream,
                # without naming the task.
                self._device.wait(self._stream)
            return [
                self._to_host(result, dtype) for result, dtype in zip(results, dtypes, strict=True)
            ]
        except EngineLost:
            _KEPT_ALIVE.extend((*inputs, *results))
            raise
        except DriverFault as fault:
            if fault.kind is FailureKind.LOST:
                _KEPT_ALIVE.extend((*inputs, *results))
            elif fault.kind is FailureKind.RELOAD:
                self._failure = str(fault)
            raise
        finally:
            # Deleting a tensor frees its memory, so it must happen here, after the wait, and not
            # when an exception that refers to this frame is deleted.
            inputs.clear()
            results.clear()

    def close(self) -> None:
        """Free all resources, unless the card is lost. Call once."""
        if self._device.lost is None:
            with self._device.releasing(RuntimeError):
                with self._context.current():
                    self._close_session()
                    self._ge.leave()
                self._context.destroy()
                self._arena.free()
        if self._device.lost is not None:
            _KEPT_ALIVE.append(self)

    def _open_session(self, graph: Graph) -> None:
        """Open a session with the graph, on a new stream with an allocator."""
        with ExitStack() as undo:
            self._stream = self._device.driver.create_stream()
            undo.callback(self._device.driver.destroy_stream, self._stream)
            self._session = self._ge.open_session(self._device.number, self._session_options)
            undo.callback(self._drop_session)
            # Before the graph: GE accepts an allocator for a stream only before the first run.
            self._allocator = allocator_over(self.pool, self._ge.py.allocator)
            self._session.register_external_allocator(self._stream, self._allocator)
            undo.callback(self._unregister)
            self._session.add_graph(_GRAPH, graph, dict(self._graph_options))
            undo.pop_all()

    def _close_session(self) -> None:
        """Undo `_open_session`; stops at the first failure."""
        self._session.remove_graph(_GRAPH)
        self._unregister()  # after the graph, whose removal frees memory with the allocator
        self._drop_session()
        # Last: an allocator must be unregistered before its stream is destroyed.
        self._device.driver.destroy_stream(self._stream)

    def _reset(self) -> None:
        _log.warning(
            "%s: the session is reopened, which compiles the graph again, after a failed "
            "execution: %s",
            self._name,
            self._failure,
        )
        try:
            graph = self._read()
        except ArtifactFault as fault:  # affects only this model, so the card is not lost
            raise EngineFault(f"{fault}; load the model again") from fault
        try:
            self._close_session()
            self._open_session(graph)
        except (DriverFault, RuntimeError) as fault:
            raise self._device.mark_lost(f"{self._name}: recovery failed: {fault}") from fault
        self._failure = None

    def _to_device(self, array: Array) -> GeTensor:
        py = self._ge.py
        tensor = py.graph.Tensor(
            array.ravel().tolist(),  # GE-PY accepts only flat lists, no arrays or buffers
            None,
            py.types.DataType(_GE_TYPE_NUMBERS[array.dtype]),
            py.types.Format.FORMAT_ND,
            list(array.shape),
        )
        return tensor.to_device()

    def _to_host(self, result: GeTensor, dtype: DType) -> Array:
        shape = tuple(result.shape)
        if not shape:  # for a scalar GE counts 0 elements, and writes out of bounds
            raise ValueError("found a result without dims, which GE-PY cannot read; expected dims")
        if 0 in shape:
            return np.empty(shape, dtype.numpy)
        # GE-PY converts elements to text: floats with six decimals, and booleans to words that it
        # cannot parse (tensor_value_utils.cc). Integers of the same size are exact.
        integers = _SAME_SIZE_INTEGERS[dtype.numpy.itemsize]
        result.to_host().set_data_type(self._ge.py.types.DataType(_GE_TYPE_NUMBERS[integers]))
        array: Array = np.asarray(result.get_data(), integers).view(dtype.numpy)
        return array.reshape(shape)

    def _unless_lost(self, undo: Callable[[], None]) -> None:
        if self._device.lost is None:
            undo()

    def _unregister(self) -> None:
        self._session.unregister_external_allocator(self._stream)

    def _drop_session(self) -> None:
        self._session = None  # deletes the last reference
