"""A graph under study: its signature with symbols, and executions that may fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.engines.base import GraphTensor
from ge_runtime.engines.onnx import dtype_of
from ge_runtime.engines.onnx_session import advised, open_session
from ge_runtime.engines.torch import TorchEngine
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array, DType, Tensors

Session: TypeAlias = Any

_TEXT_MOST: Final = 300
"""Characters of an error text that are kept."""
_PREFIX: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output of a graph."""

    name: str
    dtype: DType
    dims: tuple[int | str, ...]
    """Fixed sizes, and symbols of free dims; `<name>.<index>` if the graph has no symbol."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dims without a fixed size, each once, in order."""
        return tuple(dict.fromkeys(dim for dim in self.dims if isinstance(dim, str)))

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape at these sizes of symbols. Raises KeyError."""
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)


_Opened: TypeAlias = tuple[
    tuple[Port, ...], tuple[Port, ...], Callable[[Tensors], dict[str, Array]]
]
"""Inputs, outputs, and the function that executes a graph."""

PT2: Final = ".pt2"
"""Suffix of a program saved by torch.export."""
BARE_OUTPUT: Final = "output"
"""Name of the result of a program that returns a tensor without a name."""


class Graph:
    """An open graph. `last_error` is the engine's text of the last failure. For one thread."""

    def __init__(self, path: Path, threads: int) -> None:
        """Open an .onnx or .pt2 file on the CPU.

        Raises:
            ArtifactFault: The engine cannot open the file, or a tensor has a type that ge_runtime
                does not support.
        """
        self.engine = "torch" if path.suffix == PT2 else "ONNX Runtime"
        opened = _open_torch if path.suffix == PT2 else _open_onnx
        self.inputs, self.outputs, self._execute = opened(path, threads)
        self.last_error = ""

    def run(self, inputs: Tensors) -> dict[str, Array] | None:
        """Execute the graph; return its outputs by name, or None if it fails."""
        try:
            return self._execute(inputs)
        except Exception as error:  # onnxruntime raises a dozen classes, of which none is public
            text = advised(_PREFIX.sub("", str(error)).strip()[:_TEXT_MOST])
            self.last_error = " ".join(text.split())  # comments of config.pbtxt have one line
            return None


def _open_onnx(path: Path, threads: int) -> _Opened:
    session: Session = open_session(path, threads, ["CPUExecutionProvider"])
    inputs, outputs = ports_of(path, session.get_inputs()), ports_of(path, session.get_outputs())

    def execute(given: Tensors) -> dict[str, Array]:
        found = session.run(None, dict(given))
        return dict(zip((port.name for port in outputs), found, strict=True))

    return inputs, outputs, execute


def _open_torch(path: Path, threads: int) -> _Opened:
    try:
        engine = TorchEngine.open(path, threads, (BARE_OUTPUT,))
    except ImportError as error:
        raise ArtifactFault(
            f"{path}: found no torch ({error}), expected it for a .pt2 file; `pip install torch`"
        ) from error
    signature = engine.signature
    names = dict.fromkeys(tensor.name for tensor in signature.outputs)

    def execute(given: Tensors) -> dict[str, Array]:
        found = engine.run({name: np.ascontiguousarray(own) for name, own in given.items()}, names)
        return {name: array.copy() for name, array in found.items()}

    return tuple(map(_port, signature.inputs)), tuple(map(_port, signature.outputs)), execute


def _port(tensor: GraphTensor) -> Port:
    dims = tensor.dims or ()
    symbols = tensor.symbols or (None,) * len(dims)
    named = (
        (symbol or f"{tensor.name}.{at}") if dim is None else dim
        for at, (dim, symbol) in enumerate(zip(dims, symbols, strict=True))
    )
    return Port(tensor.name, tensor.dtype, tuple(named))


def ports_of(path: Path, arguments: Sequence[Any]) -> tuple[Port, ...]:
    """Return the inputs or outputs that a session describes; `path` is for errors.

    Raises:
        ArtifactFault: A tensor has a type that ge_runtime does not support.
    """
    ports = []
    for argument in arguments:
        dtype = dtype_of(argument.type)
        if dtype is None:
            raise ArtifactFault(
                f"{path}: found '{argument.name}' of type {argument.type}, expected tensors of "
                "numbers or texts; export the graph without sequences, maps and optional tensors"
            )
        dims = tuple(
            dim if isinstance(dim, int) else str(dim or f"{argument.name}.{at}")
            for at, dim in enumerate(argument.shape)
        )
        ports.append(Port(argument.name, dtype, dims))
    return tuple(ports)
