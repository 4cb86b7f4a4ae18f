"""One graph in a session of GE on a card: its arena, its stream, and the way of tensors there.

GE-PY's tensors are made of Python lists, and read as text: floats with six decimals, truth values
with words that GE-PY itself cannot read (tensor_value_utils.cc). So a result is read as integers of
its elements' size, to the bit. What tensors hold on the card is freed as they go, at once; so they
are let go only after their stream was waited for, and never on a card that is lost: calls might not
return.

Each execution waits for its end, so that what the wait reports is about this one and no other, as
on a `lanes.CardLane`; and as there, a failed one is followed by a new session on a new stream, with
the graph compiled again. Only the context stays the same: sessions take streams of the device's own
alone, which all of the process share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.ascend.arena_pool import ArenaPool, GeAllocator, allocator_over
from ge_runtime.ascend.card import Card
from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.codes import Kind
from ge_runtime.ascend.context import DefaultContext
from ge_runtime.ascend.description import DTYPES
from ge_runtime.ascend.driver import Address
from ge_runtime.ascend.ge_process import GeProcess, Session
from ge_runtime.ascend.lanes import TIMEOUT_S
from ge_runtime.devices import Device
from ge_runtime.errors import ArtifactFault, EngineFault, EngineLost
from ge_runtime.specs import Array, DType

# GE-PY's own objects, which come without types.
Graph: TypeAlias = Any
Tensor: TypeAlias = Any

LACKED: Final = (DType.FP64, DType.BF16)
"""Types of Triton that GE-PY's tensors cannot be made of; BYTES is another."""

_GRAPH: Final = 0
"""The number of the one graph of a session."""

_NUMBERS: Final = {dtype.numpy: number for number, dtype in DTYPES.items() if dtype not in LACKED}
"""NumPy's type: GE's number of it."""

_WHOLE: Final = {
    np.dtype(own).itemsize: np.dtype(own) for own in (np.uint8, np.int16, np.int32, np.int64)
}
"""Bytes of an element: the type of integers that it is read as."""

_LOST: Final[list[object]] = []
"""What lies on cards that are lost, until the process ends."""

_log = logging.getLogger(__name__)


class GeLane:
    """For one thread at a time."""

    def __init__(
        self,
        name: str,
        card: Card,
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
        self._card = card
        self._ge = ge
        self._read = read
        self._session_options = session_options
        self._graph_options = graph_options
        self._session: Session = None
        self._allocator: GeAllocator = None
        """To be kept while it is registered, by GE's documents."""
        self._failure: str | None = None
        """Of the last execution, if the session and its stream are not to be trusted after it."""
        with ExitStack() as undo, card.noticing():
            card.access.enter()
            self._arena = memory.allocate("GE arena", arena_bytes)
            undo.callback(self._arena.free)
            self.pool = ArenaPool(self._arena.memory, arena_bytes)
            self._context = DefaultContext(card.driver, card.device)
            undo.callback(self._unless_lost, self._context.destroy)
            ge.enter(card.device)
            undo.callback(self._unless_lost, ge.leave)
            self._begin(read())
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
        self._card.ensure_there()
        self._context.enter()
        if self._failure is not None:
            self._renew()
        given: list[Tensor] = []
        results: list[Tensor] = []
        try:
            given.extend(map(self._on_device, arrays))
            try:
                results.extend(
                    self._session.run_graph_with_stream_async(_GRAPH, self._stream, given)
                )
            finally:
                # Until then the stream uses all of it, be it that only a part was queued.
                self._card.wait(self._stream, TIMEOUT_S)
            return [
                self._on_host(result, dtype) for result, dtype in zip(results, dtypes, strict=True)
            ]
        except EngineLost:
            _LOST.extend((*given, *results))
            raise
        except DriverFault as fault:
            if fault.kind is Kind.LOST:
                _LOST.extend((*given, *results))
            elif fault.kind is Kind.RELOAD:
                self._failure = str(fault)
            raise
        finally:  # whoever keeps an error keeps this frame, too
            given.clear()
            results.clear()

    def close(self) -> None:
        """Free all of it. Once. Nothing executes: each execution waits for its end."""
        if self._card.lost is None:
            with self._card.releasing(RuntimeError):
                self._context.enter()
                self._end()
                self._ge.leave()
                self._context.destroy()
                self._arena.free()
        if self._card.lost is not None:
            _LOST.append(self)

    def _begin(self, graph: Graph) -> None:
        """A session with the graph, on a stream with an allocator."""
        with ExitStack() as undo:
            self._stream = self._card.driver.create_stream()
            undo.callback(self._card.driver.destroy_stream, self._stream)
            self._session = self._ge.open_session(self._card.device, self._session_options)
            undo.callback(self._leave_session)
            self._allocator = allocator_over(self.pool, self._ge.py.allocator)
            self._session.register_external_allocator(self._stream, self._allocator)
            undo.callback(self._unregister)
            self._session.add_graph(_GRAPH, graph, dict(self._graph_options))
            undo.pop_all()

    def _end(self) -> None:
        """Undo `_begin`, up to the first that fails.

        GE gives memory back as the graph goes, so the allocator goes after it; and it must not be
        asked for on a stream that is gone.
        """
        self._session.remove_graph(_GRAPH)
        self._unregister()
        self._leave_session()
        self._card.driver.destroy_stream(self._stream)

    def _renew(self) -> None:
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
            self._end()
            self._begin(graph)
        except (DriverFault, RuntimeError) as fault:
            raise self._card.lose(f"{self._name}: it cannot be mended: {fault}") from fault
        self._failure = None

    def _on_device(self, array: Array) -> Tensor:
        py = self._ge.py
        tensor = py.graph.Tensor(
            array.ravel().tolist(),
            None,
            py.types.DataType(_NUMBERS[array.dtype]),
            py.types.Format.FORMAT_ND,
            list(array.shape),
        )
        return tensor.to_device()

    def _on_host(self, result: Tensor, dtype: DType) -> Array:
        shape = tuple(result.shape)
        if not shape:  # GE counts no elements there, and writes on beyond the one
            raise ValueError("found a result without dims, expected one, which GE-PY can read")
        if 0 in shape:
            return np.empty(shape, dtype.numpy)
        whole = _WHOLE[dtype.numpy.itemsize]
        result.to_host().set_data_type(self._ge.py.types.DataType(_NUMBERS[whole]))
        array: Array = np.asarray(result.get_data(), whole).view(dtype.numpy)
        return array.reshape(shape)

    def _unless_lost(self, undo: Callable[[], None]) -> None:
        if self._card.lost is None:
            undo()

    def _unregister(self) -> None:
        self._session.unregister_external_allocator(self._stream)

    def _leave_session(self) -> None:
        self._session = None  # the last that refers to it
