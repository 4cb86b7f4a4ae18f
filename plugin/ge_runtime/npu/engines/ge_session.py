"""The engine for AIR graphs: `model.air`, compiled and executed by a session of GE through GE-PY.

Written from GE-PY's source and documentation, and never run on a card: the tests use a fake of
GE-PY that works on the simulator's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.config import GE_LEVELS, GRAPH_LEVEL, SESSION_LEVEL
from ge_runtime.devices import Device
from ge_runtime.engines.base import Shapes, Signature
from ge_runtime.errors import (
    ArtifactFault,
    EngineFault,
    OutOfMemory,
    RuntimeFault,
    forget_frames,
    shown,
)
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.npu.driver.atc import own_precision
from ge_runtime.npu.driver.card import Card
from ge_runtime.npu.driver.driver import Address
from ge_runtime.npu.driver.ge_py import GeProcess
from ge_runtime.npu.driver.ge_session_executor import GeSessionExecutor
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind
from ge_runtime.npu.engines.air import DYNAMIC_DIMS, NODE_TYPE, AirFile, shapes_of
from ge_runtime.specs import Array, Tensors

_PRECISION: Final = "ge.exec.precision_mode_v2"
"""Set unless config.pbtxt has it: by default GE converts FP32 graphs to FP16."""

_log = logging.getLogger(__name__)


class GeSessionEngine:
    """An AIR graph in a session of GE, which allocates from one arena on the card.

    Differences to the engine `om`:

    - No memory plan: GE-PY does not report what a graph needs. The arena has the size in
      config.pbtxt; an execution that needs more fails. `close` logs the maximum that was used.
    - Allocations while serving: GE-PY allocates each input on the card. GE allocates the weights.
    - Slow: tensors are created from Python lists and read as text, element by element.
    - No memory shared with other models; several engines of a file have separate weights.
    - Slow recovery: after a failed execution GE compiles the graph again, because it is not
      documented that a graph can be executed again after a task failed. The context, which the
      process shares, is not replaced. GE's cache (`ge.graph_compiler_cache_dir` and
      `ge.graph_key`) avoids the compilation.
    """

    def __init__(
        self,
        file: AirFile,
        card: Card,
        executor: GeSessionExecutor,
        shapes: Sequence[Shapes] | None,
    ) -> None:
        """Initialize the engine; called by `open`. `close` closes the executor."""
        self._path = file.path
        self._card = card
        self._executor = executor
        self._signature = signature = file.signature
        self._shapes = shapes
        names = [tensor.name for tensor in signature.inputs]
        self._compiled = {tuple(own[name] for name in names) for own in shapes or ()}
        self._dtypes = [tensor.dtype for tensor in signature.outputs]
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        card: Card,
        memory: Device[Address],
        ge: GeProcess,
        outputs: Sequence[str],
        *,
        arena_bytes: int,
        options: Mapping[str, str],
    ) -> GeSessionEngine:
        """Open the graph in its own session.

        Args:
            path: The .air file.
            card: The card.
            memory: The card's memory, for the arena.
            ge: GE of this process.
            outputs: See `AirFile.open`.
            arena_bytes: Size of the arena.
            options: Options of GE; GE_LEVELS has those of the session.

        Raises:
            ArtifactFault: The graph cannot be opened.
            OutOfMemory: The card has not enough memory.
            EngineLost: The card is lost.
        """
        file = AirFile.open(path, ge, outputs)
        shapes = shapes_of(file.signature.inputs, options, shown(path))
        own = {
            _PRECISION: own_precision(card.soc_name),
            **options,
            **(NODE_TYPE if DYNAMIC_DIMS in options else {}),
        }
        try:
            executor = GeSessionExecutor(
                shown(path),
                card,
                memory,
                ge,
                file.graph,
                arena_bytes=arena_bytes,
                session_options={k: v for k, v in own.items() if _level(k) == SESSION_LEVEL},
                graph_options={k: v for k, v in own.items() if _level(k) == GRAPH_LEVEL},
            )
        except (DriverFault, RuntimeError) as error:
            forget_frames(error)
            raise _fault(path, card, error, at_load=True) from error
        return cls(file, card, executor, shapes)

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def shapes(self) -> Sequence[Shapes] | None:
        """The shapes of the file or of GE's gears; None if sizes are free."""
        return self._shapes

    @property
    def lost(self) -> bool:
        return self._card.lost is not None

    @property
    def compiles_each_shape(self) -> bool:
        """False: all gears are compiled together, and free sizes at once."""
        return False

    @property
    def unplanned(self) -> tuple[str, ...]:
        return (
            "GE does not report what its graph needs: the workspace is the arena of "
            "'workspace_pool_mib', and an execution that needs more fails",
            "GE allocates the weights; the plan has the size of the file instead",
            "GE-PY allocates each input on the device, in each execution",
            "GE-PY's tensors are created from lists and read as text, element by element",
        )

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Do nothing: the arena is allocated when the engine is opened."""

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """See `Engine.run`. The first execution compiles, which takes seconds to minutes."""
        arrays = [inputs[tensor.name] for tensor in self._signature.inputs]
        shapes = tuple(array.shape for array in arrays)
        if self._shapes is not None and shapes not in self._compiled:
            raise EngineFault(
                f"{self._path}: found inputs of shapes {[list(s) for s in shapes]}, expected those "
                f"of a gear: {self._shapes}"
            )
        pool = self._executor.pool
        # GE reports a failed allocation like any other failure; the pool counts them.
        refused = pool.refused
        try:
            results = self._executor.execute(arrays, self._dtypes)
        except (DriverFault, RuntimeError, ValueError) as error:
            # Its frames refer to memory on the card, and to the session, which must be closed
            # before GE is finalized.
            forget_frames(error)
            if pool.refused > refused:
                raise OutOfMemory(
                    f"{self._path}: found {self._executor.arena_bytes:,} bytes of arena for GE, of "
                    f"which it used {pool.peak_bytes:,}, expected more for these sizes: increase "
                    f"'workspace_pool_mib' ({error})"
                ) from error
            raise _fault(self._path, self._card, error) from error
        return {
            tensor.name: _delivered(tensor.name, result, outputs[tensor.name])
            for tensor, result in zip(self._signature.outputs, results, strict=True)
            if tensor.name in outputs
        }

    def weights_bytes(self) -> int:
        """Return the size of the file, because GE does not report the size of the weights."""
        return self._path.stat().st_size

    def device_io_bytes(self) -> int:
        """Return the bytes of inputs at the largest gear; 0 if sizes are free."""
        largest = (self._shapes or [{}])[-1]  # `shapes_of` sorts them by elements
        dtypes = {tensor.name: tensor.dtype for tensor in self._signature.inputs}
        return sum(
            int(np.prod(dims)) * dtypes[name].numpy.itemsize for name, dims in largest.items()
        )

    def intermediates(self, shapes: Shapes) -> Intermediates:
        """Return the arena, which contains the results as well."""
        return Intermediates((Lifetime("arena", self._executor.arena_bytes, 0, 0),))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._executor.close()
        _log.info(
            "%s: GE used at most %s bytes of its arena of %s",
            self._path,
            f"{self._executor.pool.peak_bytes:,}",
            f"{self._executor.arena_bytes:,}",
        )


def _level(option: str) -> str:
    return GE_LEVELS.get(option, GRAPH_LEVEL)


def _delivered(name: str, result: Array, target: Array | None) -> Array:
    if target is None:
        return result
    if target.shape != result.shape:
        raise EngineFault(
            f"output '{name}': found shape {list(result.shape)}, expected {list(target.shape)}"
        )
    target[...] = result
    return target


def _fault(path: Path, card: Card, error: Exception, *, at_load: bool = False) -> RuntimeFault:
    if isinstance(error, DriverFault):
        if error.kind is FailureKind.LOST:
            return card.mark_lost(f"{path}: {error}")
        if error.kind is FailureKind.MEMORY:
            return OutOfMemory(f"{path}: {error}")
    text = (
        f"{path}: GE: {error}; for details see the log in ~/ascend/log, or set "
        "ASCEND_SLOG_PRINT_TO_STDOUT=1"
    )
    return (ArtifactFault if at_load else EngineFault)(text)
