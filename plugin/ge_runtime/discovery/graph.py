"""An ONNX graph under study: its signature with symbols, and executions that may fail."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from ge_runtime.engines.onnx import dtype_of
from ge_runtime.engines.onnx_session import advised, open_session
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
    """Fixed sizes and symbols. A dim without a symbol has `<name>.<index>`."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dims without a fixed size, each once, in order."""
        return tuple(dict.fromkeys(dim for dim in self.dims if isinstance(dim, str)))

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape at these sizes of symbols. Raises KeyError."""
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)


class Graph:
    """An open graph. For one thread.

    Attributes:
        inputs: Its inputs, in order.
        outputs: Its outputs, in order.
        last_error: ONNX Runtime's text of the last execution that failed.
    """

    def __init__(self, path: Path, threads: int) -> None:
        """Open a graph on the CPU.

        Args:
            path: The .onnx file.
            threads: Maximum number of threads of an execution.

        Raises:
            ArtifactFault: ONNX Runtime cannot open the file, or a tensor has a type that ge_runtime
                does not support.
        """
        self._session: Session = open_session(path, threads, ["CPUExecutionProvider"])
        self.inputs = ports_of(path, self._session.get_inputs())
        self.outputs = ports_of(path, self._session.get_outputs())
        self.last_error = ""

    def run(self, inputs: Tensors) -> dict[str, Array] | None:
        """Execute the graph; return its outputs by name, or None if it fails."""
        try:
            found = self._session.run(None, dict(inputs))
        except Exception as error:  # onnxruntime raises a dozen classes, of which none is public
            self.last_error = advised(_PREFIX.sub("", str(error)).strip()[:_TEXT_MOST])
            return None
        return dict(zip((port.name for port in self.outputs), found, strict=True))


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
