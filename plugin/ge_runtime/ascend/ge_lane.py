"""One graph in a session of GE on a card: its arena, its stream, and the way of tensors there.

GE-PY's tensors are made of Python lists, and read as text. What they hold on the card is freed as
they go, at once; so they are let go only after their stream was waited for, and never on a card
that is lost: calls might not return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.ascend.arena_pool import ArenaPool, allocator_over
from ge_runtime.ascend.card import Card
from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.codes import Kind
from ge_runtime.ascend.context import DefaultContext
from ge_runtime.ascend.description import DTYPES
from ge_runtime.ascend.driver import Address
from ge_runtime.ascend.ge_process import GeProcess, Session
from ge_runtime.ascend.lanes import TIMEOUT_S
from ge_runtime.devices import Device
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

_LOST: Final[list[object]] = []
"""What lies on cards that are lost, until the process ends."""


class GeLane:
    """See above. For one thread at a time."""

    def __init__(
        self,
        card: Card,
        memory: Device[Address],
        ge: GeProcess,
        graph: Graph,
        *,
        arena_bytes: int,
        session_options: Mapping[str, str],
        graph_options: Mapping[str, str],
    ) -> None:
        """memory: of the card, for the arena. Options are GE's.

        Raises OutOfMemory, DriverFault, or RuntimeError as GE does.
        """
        self._card = card
        self._ge = ge
        self._session: Session = None
        self._undo = ExitStack()
        with ExitStack() as undo:
            card.access.enter()
            self._arena = memory.allocate("GE arena", arena_bytes)
            undo.callback(self._arena.free)
            self.pool = ArenaPool(self._arena.memory, arena_bytes)
            # Sessions take streams of no other context.
            self._context = DefaultContext(card.driver, card.device)
            undo.callback(self._context.destroy)
            self._stream = card.driver.create_stream()
            undo.callback(card.driver.destroy_stream, self._stream)
            self._session = ge.open_session(card.device, session_options)
            undo.callback(self._leave)
            # GE gives memory back as the graph goes, so the allocator goes after it; and it must
            # not be asked for on a stream that is gone.
            allocator = allocator_over(self.pool, ge.py.allocator)
            self._session.register_external_allocator(self._stream, allocator)
            undo.callback(self._unregister)
            self._session.add_graph(_GRAPH, graph, dict(graph_options))
            undo.callback(self._remove_graph)
            self._undo = undo.pop_all()

    @property
    def arena_bytes(self) -> int:
        """All that GE can have for results and workspace."""
        return self._arena.nbytes

    def execute(self, arrays: Sequence[Array], dtypes: Sequence[DType]) -> list[Array]:
        """The graph's results for these inputs, both in its order; dtypes: of the results.

        Blocks until all is done; the first call compiles the graph as well.
        Raises RuntimeError as GE does, DriverFault, or EngineLost. As long as an error's traceback
        is kept, so is what the execution had on the card.
        """
        self._card.ensure_there()
        self._context.enter()
        given: list[Tensor] = []
        results: list[Tensor] = []
        try:
            given.extend(map(self._on_device, arrays))
            try:
                run = self._session.run_graph_with_stream_async
                results.extend(run(_GRAPH, self._stream, given))
            finally:
                # Until then the stream uses all of it, be it that only a part was queued.
                timeout_ms = round(TIMEOUT_S * 1e3)
                self._card.driver.synchronize_stream(self._stream, timeout_ms)
            return [
                np.asarray(result.to_host().get_data(), dtype.numpy).reshape(result.shape)
                for result, dtype in zip(results, dtypes, strict=True)
            ]
        except DriverFault as fault:
            if fault.kind is Kind.LOST:
                _LOST.extend((*given, *results))
            raise

    def close(self) -> None:
        """Free all of it. Once. Nothing executes: each execution waits for its end."""
        if self._card.lost is not None:
            _LOST.append((self._undo.pop_all(), self._session))
            return
        self._context.enter()
        self._undo.close()

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

    def _leave(self) -> None:
        self._session = None  # the last that refers to it
        self._ge.leave()

    def _unregister(self) -> None:
        self._session.unregister_external_allocator(self._stream)

    def _remove_graph(self) -> None:
        self._session.remove_graph(_GRAPH)
