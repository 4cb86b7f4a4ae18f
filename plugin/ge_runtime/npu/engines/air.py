"""AIR files, which are graphs for a session of GE: their signature, and gears in GE's options.

AIR files are written by torchair's `dynamo_export` and GE-PY's `Graph.save_to_air`. GE-PY cannot
read ONNX graphs; `ge-runtime build` compiles them to a model.om.

GE's options for gears:

- `graph.ge.inputShape`: the dims of all inputs, -1 for sizes that differ: `ids:-1,-1;mask:-1,-1`.
- `graph.ge.dynamicDims`: for each gear the sizes of each -1, in order: `1,64,1,64;8,64,8,64`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from ge_runtime.engines.base import GraphTensor, Shapes, Signature
from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.driver.atc import ensure_content, sha256_of
from ge_runtime.npu.driver.description import ACL_DTYPES
from ge_runtime.npu.driver.ge_py import GeProcess, Graph, GraphValue, graph_inputs, graph_outputs
from ge_runtime.npu.driver.ge_session_executor import UNSUPPORTED_DTYPES


@dataclass(frozen=True, slots=True)
class AirFile:
    """An AIR file with its signature."""

    path: Path
    ge: GeProcess
    digest: str
    """SHA-256 of its content."""
    signature: Signature

    @classmethod
    def open(cls, path: Path, ge: GeProcess, outputs: Sequence[str]) -> AirFile:
        """Open an AIR file.

        Args:
            path: The file.
            ge: GE of this process.
            outputs: Names for the graph's results, in their order: an AIR graph does not name them.

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
            "more"
        )
    return GraphTensor(name, dtype, value.dims)


INPUT_SHAPE: Final = "ge.inputShape"
DYNAMIC_DIMS: Final = "ge.dynamicDims"
NODE_TYPE: Final = {"ge.dynamicNodeType": "1"}
"""Option required for gears: the caller provides the inputs, not a data set of GE."""

_FEWEST, _MOST = 2, 100
"""Minimum and maximum number of gears, as documented. Checked here so that the error names the
parameter."""


def shapes_of(
    inputs: Sequence[GraphTensor], options: Mapping[str, str], artifact: str
) -> list[Shapes] | None:
    """Return the shapes that the graph can execute, sorted by elements; None: any shapes.

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
        name, colon, dims = part.strip().rpartition(":")  # the last one: names may have colons
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
    """Parse numbers separated by commas; empty text is no numbers, None is invalid text."""
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
