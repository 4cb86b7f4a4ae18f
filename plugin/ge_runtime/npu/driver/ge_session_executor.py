"""One graph in a session of GE on a card: its arena, its stream, and its executions.

After a failed execution comes a new session on a new stream, with the graph compiled again. Only
the context stays the same: sessions take streams of the device's own alone, which all of the
process share.
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
from ge_runtime.memory.suballocator import Suballocator
from ge_runtime.npu.driver.description import ACL_DTYPES
from ge_runtime.npu.driver.device import AscendDevice, DefaultContext
from ge_runtime.npu.driver.driver import Address
from ge_runtime.npu.driver.ge_py import GeProcess, GePy, Graph, Session
from ge_runtime.npu.driver.memory import part_bytes
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind
from ge_runtime.specs import Array, DType

# GE-PY's own objects, which come without types.
GeAllocator: TypeAlias = Any
GeTensor: TypeAlias = Any
MemBlock: TypeAlias = Any

UNSUPPORTED_DTYPES: Final = (DType.FP64, DType.BF16)
"""Types of Triton that GE-PY's tensors cannot be made of; BYTES is another."""

_GRAPH: Final = 0
"""The number of the one graph of a session."""

_GE_TYPE_NUMBERS: Final = {
    dtype.numpy: number for number, dtype in ACL_DTYPES.items() if dtype not in UNSUPPORTED_DTYPES
}
"""NumPy's type: GE's number of it."""

_SAME_SIZE_INTEGERS: Final = {
    np.dtype(own).itemsize: np.dtype(own) for own in (np.uint8, np.int16, np.int32, np.int64)
}
"""Bytes of an element: the type of integers that it is read as."""

_KEPT_ALIVE: Final[list[object]] = []
"""What lies on cards that are lost, until the process ends: to free it is a call that may hang."""

ALIGNMENT: Final = 512
"""Bytes. What GE aligns its own memory to; it promises to ask for nothing."""

_log = logging.getLogger(__name__)


class ArenaPool:
    """Blocks of one buffer on a card, for a library that asks for memory while it executes.

    They start at multiples of ALIGNMENT. Safe from any thread.
    """

    def __init__(self, start: Address, nbytes: int) -> None:
        """The range [start, start + nbytes), of which at least ALIGNMENT bytes are usable."""
        self._base = -(-start // ALIGNMENT) * ALIGNMENT
        self._suballocator = Suballocator(start + nbytes - self._base)
        self._lock = Lock()
        self.peak_bytes = 0
        """The most that was used at a time."""
        self.refused = 0
        """How often something did not fit: each is a defect of the capacity that was chosen."""

    @property
    def used_bytes(self) -> int:
        """What is used now, with what alignment and the rule for parts of a block add."""
        return self._suballocator.capacity - self._suballocator.free_bytes

    def allocate(self, nbytes: int) -> Address:
        """A block of at least so many bytes. Raises MemoryError if there is none."""
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
        """Raises ValueError for what was not allocated, or freed before."""
        with self._lock:
            self._suballocator.free(address - self._base)


def allocator_over(pool: ArenaPool, allocators: GePy) -> GeAllocator:
    """A `ge.allocator.Allocator` that serves from the pool. allocators: the module ge.allocator.

    GE calls it from threads of its own. What it raises, GE takes for memory that is not there.
    """
    # GE keeps what it got by its identity: blocks stay referenced until they are given back.
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
    """Executes one graph in a session of GE. For one thread at a time."""

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
        """name: of the graph, for people. memory: of the card, for the arena. Options are GE's.

        read: the graph, for each session anew; raises RuntimeError as GE does, or ArtifactFault.
        Raises what that does, OutOfMemory, DriverFault or EngineLost.
        """
        self._name = name
        self._device = device
        self._ge = ge
        self._read = read
        self._session_options = session_options
        self._graph_options = graph_options
        self._session: Session = None
        self._allocator: GeAllocator = None
        """To be kept while it is registered, by GE's documents."""
        self._failure: str | None = None
        """Of the last execution, if the session and its stream are not to be trusted after it."""
        with ExitStack() as undo, device.noticing_loss():
            device.ensure_context()
            self._arena = memory.allocate("GE arena", arena_bytes)
            undo.callback(self._arena.free)
            self.pool = ArenaPool(self._arena.memory, arena_bytes)
            self._context = DefaultContext(device.driver, device.number)
            undo.callback(self._unless_lost, self._context.destroy)
            ge.enter(device.number)
            undo.callback(self._unless_lost, ge.leave)
            self._open_session(read())
            undo.pop_all()

    @property
    def arena_bytes(self) -> int:
        """All that GE can have for results and workspace."""
        return self._arena.nbytes

    def execute(self, arrays: Sequence[Array], dtypes: Sequence[DType]) -> list[Array]:
        """The graph's results for these inputs, both in its order; dtypes: of the results.

        Blocks until all is done; the first call, and that after a failure, compiles the graph.
        Raises RuntimeError or ValueError as GE does, DriverFault, EngineLost, or EngineFault if it
        is to be compiled again and its file is another by now.
        """
        self._device.ensure_there()
        self._context.enter()
        if self._failure is not None:
            self._reset()
        given: list[GeTensor] = []
        results: list[GeTensor] = []
        try:
            given.extend(map(self._to_device, arrays))
            try:
                results.extend(
                    self._session.run_graph_with_stream_async(_GRAPH, self._stream, given)
                )
            finally:
                # Until then the stream uses all of it, be it that only a part was queued. And what
                # this reports is of this execution: the driver tells of a failed task at the next
                # wait for its stream, once, and not which task it was.
                self._device.wait(self._stream)
            return [
                self._to_host(result, dtype) for result, dtype in zip(results, dtypes, strict=True)
            ]
        except EngineLost:
            _KEPT_ALIVE.extend((*given, *results))
            raise
        except DriverFault as fault:
            if fault.kind is FailureKind.LOST:
                _KEPT_ALIVE.extend((*given, *results))
            elif fault.kind is FailureKind.RELOAD:
                self._failure = str(fault)
            raise
        finally:
            # GE frees what a tensor holds as the tensor goes, at once: so after the wait, and not
            # by whoever keeps an error and with it this frame.
            given.clear()
            results.clear()

    def close(self) -> None:
        """Free all of it. Once. Nothing executes: each execution waits for its end."""
        if self._device.lost is None:
            with self._device.releasing(RuntimeError):
                self._context.enter()
                self._close_session()
                self._ge.leave()
                self._context.destroy()
                self._arena.free()
        if self._device.lost is not None:
            _KEPT_ALIVE.append(self)

    def _open_session(self, graph: Graph) -> None:
        """A session with the graph, on a stream with an allocator."""
        with ExitStack() as undo:
            self._stream = self._device.driver.create_stream()
            undo.callback(self._device.driver.destroy_stream, self._stream)
            self._session = self._ge.open_session(self._device.number, self._session_options)
            undo.callback(self._drop_session)
            # Before the graph: GE takes an allocator for a stream before the first run only.
            self._allocator = allocator_over(self.pool, self._ge.py.allocator)
            self._session.register_external_allocator(self._stream, self._allocator)
            undo.callback(self._unregister)
            self._session.add_graph(_GRAPH, graph, dict(self._graph_options))
            undo.pop_all()

    def _close_session(self) -> None:
        """Undo `_open_session`, up to the first that fails."""
        self._session.remove_graph(_GRAPH)
        self._unregister()  # after the graph, which gives its memory back to the allocator
        self._drop_session()
        # Last: an allocator is to be unregistered before its stream is destroyed.
        self._device.driver.destroy_stream(self._stream)

    def _reset(self) -> None:
        _log.warning(
            "%s: its session is made anew, which compiles it again, after a failed execution: %s",
            self._name,
            self._failure,
        )
        try:
            graph = self._read()
        except ArtifactFault as fault:  # of this model alone: the card has others
            raise EngineFault(f"{fault}; load the model again") from fault
        try:
            self._close_session()
            self._open_session(graph)
        except (DriverFault, RuntimeError) as fault:
            raise self._device.lose(f"{self._name}: it cannot be mended: {fault}") from fault
        self._failure = None

    def _to_device(self, array: Array) -> GeTensor:
        py = self._ge.py
        tensor = py.graph.Tensor(
            array.ravel().tolist(),  # GE-PY takes flat lists only: no array, no buffer, no pointer
            None,
            py.types.DataType(_GE_TYPE_NUMBERS[array.dtype]),
            py.types.Format.FORMAT_ND,
            list(array.shape),
        )
        return tensor.to_device()

    def _to_host(self, result: GeTensor, dtype: DType) -> Array:
        shape = tuple(result.shape)
        if not shape:  # GE counts no elements there, and writes on beyond the one
            raise ValueError("found a result without dims, expected one, which GE-PY can read")
        if 0 in shape:
            return np.empty(shape, dtype.numpy)
        # By itself GE-PY gives text: floats with six decimals, truth values with words that it
        # cannot read (tensor_value_utils.cc). Integers of the same size come back to the bit.
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
        self._session = None  # the last that refers to it
