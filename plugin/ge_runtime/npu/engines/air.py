"""AIR files: graphs for a session of GE, what they take and give, and the gears of GE's options.

AIR files are what torchair's `dynamo_export` and GE-PY's `Graph.save_to_air` write. There is no
way from ONNX to a session in Python: an ONNX graph becomes a model.om, by `ge-runtime build`.

GE's options write gears so:

- `graph.ge.inputShape`: the dims of every input, -1 where gears differ: `ids:-1,-1;mask:-1,-1`.
- `graph.ge.dynamicDims`: for each gear a size for each -1, in that order: `1,64,1,64;8,64,8,64`.
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
    """A file that GE-PY has read once."""

    path: Path
    ge: GeProcess
    digest: str
    """SHA-256 of its content."""
    signature: Signature

    @classmethod
    def open(cls, path: Path, ge: GeProcess, outputs: Sequence[str]) -> AirFile:
        """The file at `path`. Raises ArtifactFault.

        outputs: the names of the graph's results in their order, as an AIR graph has none for them.
        """
        try:
            digest = sha256_of(path)
            graph = _load(path, ge)
            signature = _signature(path, graph_inputs(graph), graph_outputs(graph), outputs)
        except OSError as error:
            raise ArtifactFault(f"{path}: {error.strerror}") from error
        except (RuntimeError, ValueError, AttributeError) as error:
            raise ArtifactFault(
                f"{path}: GE cannot read it: {error}; expected an AIR file of this CANN, as "
                "torchair's dynamo_export writes it; of a model.onnx `ge-runtime build` makes a "
                "model.om"
            ) from error
        return cls(path, ge, digest, signature)

    def graph(self) -> Graph:
        """The graph, read anew: one is of one session.

        Raises RuntimeError as GE does, and ArtifactFault if the file is another by now, or gone.
        """
        try:
            ensure_content(self.path, self.digest)
        except OSError as error:
            raise ArtifactFault(f"{self.path}: {error.strerror}") from error
        return _load(self.path, self.ge)


def _load(path: Path, ge: GeProcess) -> Graph:
    # Named after the model's folder: the file is called model.air in each of them.
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
            f"that GE-PY has tensors of: Triton's but {lacked} and BYTES; a model.om can have more"
        )
    return GraphTensor(name, dtype, value.dims)


INPUT_SHAPE: Final = "ge.inputShape"
DYNAMIC_DIMS: Final = "ge.dynamicDims"
NODE_TYPE: Final = {"ge.dynamicNodeType": "1"}
"""What goes with gears: inputs are given by the caller, and not by a data set of GE's."""

_FEWEST, _MOST = 2, 100
"""Gears of a graph, by GE's documents: refused here, where the text can name the parameter."""


def shapes_of(
    inputs: Sequence[GraphTensor], options: Mapping[str, str], artifact: str
) -> list[Shapes] | None:
    """The only shapes that the graph executes; None for any. By growing elements.

    Raises ArtifactFault for options that GE would refuse or that do not fit the graph.
    """
    given = [option for option in (INPUT_SHAPE, DYNAMIC_DIMS) if option in options]
    if not given:
        if any(tensor.dims is None or None in tensor.dims for tensor in inputs):
            return None
        return [{tensor.name: _fixed(tensor) for tensor in inputs}]
    if len(given) < 2:
        raise ArtifactFault(
            f"parameter 'graph.{given[0]}': found it alone, expected {INPUT_SHAPE} and "
            f"{DYNAMIC_DIMS} together"
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
        name, colon, dims = part.strip().rpartition(":")  # the last: names may have colons
        numbers = _numbers(dims)
        sound = colon and name and name not in pattern
        if not sound or numbers is None or min(numbers, default=1) < -1:
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
            _refuse(INPUT_SHAPE, found, f"what {artifact} has: {tensor}")


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
    """The numbers between commas, none for a text of nothing; None for other text."""
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        return None


def _shapes_at(pattern: Mapping[str, tuple[int, ...]], gear: Sequence[int]) -> Shapes:
    # One iterator for all inputs: GE lists a gear's sizes in the order of all -1 of all inputs.
    left = iter(gear)
    return {
        name: tuple(next(left) if dim == -1 else dim for dim in dims)
        for name, dims in pattern.items()
    }


def _elements(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def _refuse(option: str, found: str, expected: str) -> NoReturn:
    raise ArtifactFault(f"parameter 'graph.{option}': found {found}, expected {expected}")
