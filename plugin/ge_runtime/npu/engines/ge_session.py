"""The engine for AIR graphs: `model.air`, compiled and executed by a session of GE through GE-PY.

Written from GE-PY's source and documentation, and never run on a card: the tests use a fake of
GE-PY that works on the simulator's memory.

AIR files are written by torchair's `dynamo_export` and GE-PY's `Graph.save_to_air`. GE-PY cannot
read ONNX graphs; `ge-runtime build` compiles them to a model.om. GE's options for gears:

- `graph.ge.inputShape`: the dims of all inputs, -1 for sizes that differ: `ids:-1,-1;mask:-1,-1`.
- `graph.ge.dynamicDims`: for each gear the sizes of each -1, in order: `1,64,1,64;8,64,8,64`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ge_runtime.config import GE_LEVELS, GRAPH_LEVEL, SESSION_LEVEL
from ge_runtime.devices import Device
from ge_runtime.engines.base import GraphTensor, Shapes, Signature
from ge_runtime.errors import (
    ArtifactFault,
    EngineFault,
    OutOfMemory,
    RuntimeFault,
    forget_frames,
    shown,
)
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.npu.driver.atc import ensure_content, own_precision, sha256_of
from ge_runtime.npu.driver.cann_values import ACL_DTYPES, DriverFault, FailureKind
from ge_runtime.npu.driver.card import Card
from ge_runtime.npu.driver.driver import Address
from ge_runtime.npu.driver.ge_session_executor import UNSUPPORTED_DTYPES, GeSessionExecutor
from ge_runtime.npu.driver.installation import (
    GeProcess,
    Graph,
    GraphValue,
    graph_inputs,
    graph_outputs,
    log_folder,
)
from ge_runtime.specs import Array, Tensors

_PRECISION: Final = "ge.exec.precision_mode_v2"
"""Set unless config.pbtxt sets it, because GE converts FP32 graphs to FP16 by default."""

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
            options: Options of GE; GE_LEVELS has the options of sessions.

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
        """False: GE compiles all gears together, and one program for free sizes."""
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
        # GE reports a failed allocation like any other failure; the pool counts such allocations.
        refused = pool.refused
        try:
            results = self._executor.execute(arrays, self._dtypes)
        except (DriverFault, RuntimeError, ValueError) as error:
            # The error's frames refer to memory on the card, and to the session, which must be
            # closed before GE is finalized.
            forget_frames(error)
            if pool.refused > refused:
                raise OutOfMemory(
                    f"{self._path}: found {self._executor.arena_bytes:,} bytes of arena for GE, of "
                    f"which GE used {pool.peak_bytes:,}, expected more for these sizes: increase "
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
        largest = (self._shapes or [{}])[-1]  # `shapes_of` sorts shapes by elements
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
        f"{path}: GE: {error}; for details see the log in {log_folder()}, or set "
        "ASCEND_LOG_PRINT_TO_STDOUT=1"
    )
    return (ArtifactFault if at_load else EngineFault)(text)


@dataclass(frozen=True, slots=True)
class AirFile:
    """An AIR file with its signature."""

    path: Path
    ge: GeProcess
    digest: str
    """SHA-256 of the file's content."""
    signature: Signature

    @classmethod
    def open(cls, path: Path, ge: GeProcess, outputs: Sequence[str]) -> AirFile:
        """Open an AIR file.

        Args:
            path: The file.
            ge: GE of this process.
            outputs: Names for the graph's results, in the results' order: an AIR graph has none.

        Raises:
            ArtifactFault: The file cannot be read, or has an unsupported type.
        """
        try:
            digest = sha256_of(path)
            graph = _load(path, ge)
            signature = _signature(path, graph_inputs(graph), graph_outputs(graph), outputs)
        except OSError as error:
            raise ArtifactFault(f"{path}: {error.strerror}") from error
        except (RuntimeError, ValueError, AttributeError) as error:
            raise ArtifactFault(
                f"{path}: GE cannot read it: {error}; expected an AIR file of this version of "
                "CANN, as torchair's dynamo_export writes it; `ge-runtime build` compiles a "
                "model.onnx to a model.om"
            ) from error
        return cls(path, ge, digest, signature)

    def graph(self) -> Graph:
        """Read the graph again, because a graph object belongs to one session.

        Raises:
            RuntimeError: GE failed.
            ArtifactFault: The file has changed or is missing.
        """
        try:
            ensure_content(self.path, self.digest)
        except OSError as error:
            raise ArtifactFault(f"{self.path}: {error.strerror}") from error
        return _load(self.path, self.ge)


def _load(path: Path, ge: GeProcess) -> Graph:
    # Named after the model's folder, because the file is always called model.air.
    graph = ge.py.graph.Graph(path.parent.parent.name or "graph")
    graph.load_from_air(str(path))
    return graph


def _signature(
    path: Path, inputs: Sequence[GraphValue], results: Sequence[GraphValue], names: Sequence[str]
) -> Signature:
    if len(results) != len(names):
        found = f"{len(results)} result(s)" if results else "no node NetOutput"
        raise ArtifactFault(
            f"{path}: found {found}, expected one for each output of config.pbtxt, in its order: "
            f"{', '.join(names)}"
        )
    return Signature(
        inputs=tuple(_tensor(path, value, value.name) for value in inputs),
        outputs=tuple(
            _tensor(path, value, name) for value, name in zip(results, names, strict=True)
        ),
    )


def _tensor(path: Path, value: GraphValue, name: str) -> GraphTensor:
    dtype = ACL_DTYPES.get(value.dtype)
    if dtype is None or dtype in UNSUPPORTED_DTYPES:
        lacked = ", ".join(each.value for each in UNSUPPORTED_DTYPES)
        raise ArtifactFault(
            f"{path}: '{name}': found type {dtype.value if dtype else value.dtype}, expected one "
            f"that GE-PY supports: Triton's types except {lacked} and BYTES; a model.om supports "
            "more types"
        )
    return GraphTensor(name, dtype, value.dims)


INPUT_SHAPE: Final = "ge.inputShape"
DYNAMIC_DIMS: Final = "ge.dynamicDims"
NODE_TYPE: Final = {"ge.dynamicNodeType": "1"}
"""The option that gears require: the caller provides the inputs, not a data set of GE."""

_FEWEST, _MOST = 2, 100
"""The documented minimum and maximum number of gears, checked here so that the error names the
parameter."""


def shapes_of(
    inputs: Sequence[GraphTensor], options: Mapping[str, str], artifact: str
) -> list[Shapes] | None:
    """Return the shapes that the graph can execute, sorted by elements; None for any shapes.

    Args:
        inputs: The graph's inputs.
        options: GE's options.
        artifact: The file's name, for errors.

    Raises:
        ArtifactFault: An option is invalid, or does not fit the graph.
    """
    given = [option for option in (INPUT_SHAPE, DYNAMIC_DIMS) if option in options]
    if not given:
        if any(tensor.dims is None or None in tensor.dims for tensor in inputs):
            return None
        return [{tensor.name: _fixed(tensor) for tensor in inputs}]
    if len(given) < 2:
        raise ArtifactFault(
            f"parameter 'graph.{given[0]}': found only this one, expected both {INPUT_SHAPE} and "
            f"{DYNAMIC_DIMS}"
        )
    pattern = _pattern(options[INPUT_SHAPE])
    _check_pattern(pattern, inputs, artifact)
    free_dims = sum(dims.count(-1) for dims in pattern.values())
    gears = _dynamic_dims(options[DYNAMIC_DIMS], free_dims)
    shapes = [_shapes_at(pattern, gear) for gear in gears]
    return sorted(shapes, key=_elements)


def _fixed(tensor: GraphTensor) -> tuple[int, ...]:
    return tuple(dim for dim in tensor.dims or () if dim is not None)


def _pattern(text: str) -> dict[str, tuple[int, ...]]:
    pattern: dict[str, tuple[int, ...]] = {}
    for part in text.split(";"):
        name, colon, dims = part.strip().rpartition(":")  # the last colon: names may have colons
        numbers = _numbers(dims)
        is_valid = colon and name and name not in pattern
        if not is_valid or numbers is None or min(numbers, default=1) < -1:
            _refuse(INPUT_SHAPE, f"'{part}'", "the name of an input once, a colon and its dims")
        pattern[name] = numbers
    return pattern


def _check_pattern(
    pattern: Mapping[str, tuple[int, ...]], inputs: Sequence[GraphTensor], artifact: str
) -> None:
    names = [tensor.name for tensor in inputs]
    if sorted(pattern) != sorted(names):
        _refuse(INPUT_SHAPE, ", ".join(pattern), f"all inputs of {artifact}: {', '.join(names)}")
    for tensor in inputs:
        dims = pattern[tensor.name]
        fits = tensor.dims is None or (
            len(dims) == len(tensor.dims)
            and all(own in (None, dim) for own, dim in zip(tensor.dims, dims, strict=True))
        )
        if not fits:
            found = f"{list(dims)} for '{tensor.name}'"
            _refuse(INPUT_SHAPE, found, f"dims that fit {artifact}: {tensor}")


def _dynamic_dims(text: str, free_dims: int) -> list[tuple[int, ...]]:
    gears: list[tuple[int, ...]] = []
    for part in text.split(";"):
        gear = _numbers(part)
        if gear is None or len(gear) != free_dims or min(gear, default=0) < 1 or gear in gears:
            expected = f"{free_dims} positive number(s), one for each -1, and no gear twice"
            _refuse(DYNAMIC_DIMS, f"'{part}'", expected)
        gears.append(gear)
    if not _FEWEST <= len(gears) <= _MOST:
        _refuse(DYNAMIC_DIMS, f"{len(gears)} gear(s)", f"{_FEWEST} to {_MOST}")
    return gears


def _numbers(text: str) -> tuple[int, ...] | None:
    """Parse numbers separated by commas, of which there may be none; None if invalid."""
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        return None


def _shapes_at(pattern: Mapping[str, tuple[int, ...]], gear: Sequence[int]) -> Shapes:
    # One iterator for all inputs: a gear has the sizes of each -1 of all inputs.
    sizes = iter(gear)
    return {
        name: tuple(next(sizes) if dim == -1 else dim for dim in dims)
        for name, dims in pattern.items()
    }


def _elements(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def _refuse(option: str, found: str, expected: str) -> NoReturn:
    raise ArtifactFault(f"parameter 'graph.{option}': found {found}, expected {expected}")
