"""Graphs whose answers are known exactly, as .onnx files; the package onnx is not needed.

`y` is `x`, FP32, moved on along its second dimension by one for each layer. A layer is a product
with a permutation: no sum has more than one term that is not 0, so FP16 is as exact as FP32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.engines.analysis.protobuf import varint

Field: TypeAlias = "tuple[int, int | str | bytes]"

_FP32: Final = 1
_OPSET: Final = 13


class Graph(Protocol):
    """A graph whose answers are known exactly."""

    @property
    def name(self) -> str:
        """One for each graph."""

    @property
    def layers(self) -> int:
        """How far `x` is moved."""

    @property
    def flags(self) -> Sequence[str]:
        """What tells ATC its sizes."""

    @property
    def operator(self) -> str:
        """Of ONNX, in each layer."""

    @property
    def permutation(self) -> NDArray[np.float32]:
        """What each layer multiplies with."""

    @property
    def dims(self) -> Sequence[int | str]:
        """Of `x` and `y`: numbers, and names of what varies."""

    def shape(self, gear: Any = None) -> tuple[int, ...]:  # noqa: ANN401 - each has its own
        """Of `x` and `y`, at a gear or at the largest size."""


@dataclass(frozen=True)
class RollingMatmul:
    """[rows, width], a chain of matrix products."""

    operator: ClassVar = "MatMul"

    rows: int = 64
    """The most there are."""
    width: int = 512
    layers: int = 16
    gears: tuple[int, ...] = ()
    """Numbers of rows that it is compiled for; () for `rows` alone."""
    least: int = 0
    """Without gears: it is compiled for so many rows up to `rows`; 0 for `rows` alone."""

    @property
    def name(self) -> str:
        rows = "_".join(map(str, self.gears or (self.rows,)))
        rows = f"{self.least}_to_{rows}" if self.least else rows
        return f"{rows}_by_{self.width}_times_{self.layers}"

    @property
    def flags(self) -> Sequence[str]:
        rows = "-1" if self.gears else str(self.rows)
        rows = f"{self.least}~{self.rows}" if self.least else rows
        gears = [f"--dynamic_batch_size={','.join(map(str, self.gears))}"] if self.gears else []
        return [f"--input_shape=x:{rows},{self.width}", "--input_format=ND", *gears]

    @property
    def permutation(self) -> NDArray[np.float32]:
        return np.roll(np.eye(self.width, dtype=np.float32), 1, axis=1)

    @property
    def dims(self) -> Sequence[int | str]:
        return ["rows" if self.gears or self.least else self.rows, self.width]

    def shape(self, gear: int | None = None) -> tuple[int, ...]:
        return (self.rows if gear is None else gear, self.width)


@dataclass(frozen=True)
class RollingConv:
    """[1, channels, height, width], one convolution; it is compiled for image sizes, or one."""

    operator: ClassVar = "Conv"
    layers: ClassVar = 1

    channels: int = 16
    gears: tuple[tuple[int, int], ...] = ((8, 32), (64, 16))
    """Height and width; by growing elements."""
    aipp: tuple[str, Path] | None = None
    """Name and file of ATC's --insert_op_conf; with one gear."""

    @property
    def name(self) -> str:
        sizes = "_".join(f"{high}x{wide}" for high, wide in self.gears)
        made = f"_of_{self.aipp[0]}" if self.aipp else ""
        return f"{self.channels}_of_{sizes}{made}"

    @property
    def flags(self) -> Sequence[str]:
        shape = f"--input_shape=x:1,{self.channels}"
        if len(self.gears) == 1:
            high, wide = self.gears[0]
            images = [f"--insert_op_conf={self.aipp[1]}"] if self.aipp else []
            return [f"{shape},{high},{wide}", "--input_format=NCHW", *images]
        sizes = ";".join(f"{high},{wide}" for high, wide in self.gears)
        return [f"{shape},-1,-1", "--input_format=NCHW", f"--dynamic_image_size={sizes}"]

    @property
    def permutation(self) -> NDArray[np.float32]:
        rolled = np.roll(np.eye(self.channels, dtype=np.float32), 1, axis=0)
        return rolled.reshape(self.channels, self.channels, 1, 1)

    @property
    def dims(self) -> Sequence[int | str]:
        sides = self.gears[0] if len(self.gears) == 1 else ("height", "width")
        return [1, self.channels, *sides]

    def shape(self, gear: tuple[int, int] | None = None) -> tuple[int, ...]:
        return (1, self.channels, *(self.gears[-1] if gear is None else gear))


def onnx_file(graph: Graph) -> bytes:
    """Its .onnx file."""
    # The numbers are those of the fields in onnx.proto3: of NodeProto, TensorProto, ValueInfoProto,
    # GraphProto and ModelProto.
    names = ["x", *(f"moved_{layer}" for layer in range(1, graph.layers)), "y"]
    nodes = [
        _message((1, taken), (1, "permutation"), (2, made), (3, f"to_{made}"), (4, graph.operator))
        for taken, made in pairwise(names)
    ]
    permutation = graph.permutation
    sizes: list[Field] = [(1, size) for size in permutation.shape]
    weights = _message(*sizes, (2, _FP32), (8, "permutation"), (9, permutation.tobytes()))
    dims = (_message((2 if isinstance(dim, str) else 1, dim)) for dim in graph.dims)
    shape = _message(*((1, dim) for dim in dims))
    tensor = _message((1, _message((1, _FP32), (2, shape))))
    ends = [(place, _message((1, name), (2, tensor))) for place, name in ((11, "x"), (12, "y"))]
    content = _message(*((1, node) for node in nodes), (2, "moving"), (5, weights), *ends)
    opset = _message((1, ""), (2, _OPSET))
    return _message((1, 8), (2, "ge-runtime probe-device"), (7, content), (8, opset))


def exact_input(shape: Sequence[int]) -> NDArray[np.float32]:
    """An `x`: whole numbers that FP16 has too, no two neighbours alike.

    In C order a smaller one is how a larger one begins.
    """
    # FP16 has all whole numbers up to 2048.
    return (np.arange(math.prod(shape), dtype=np.float32) % 1999).reshape(shape)


def rolled(x: NDArray[np.float32], layers: int) -> NDArray[np.float32]:
    """Its `y`."""
    return np.roll(x, layers, axis=1)


def _message(*fields: Field) -> bytes:
    """Numbered fields as protobuf writes them: whole numbers, texts, and messages in bytes."""
    written = b""
    for number, value in fields:
        if isinstance(value, int):
            written += varint(number << 3) + varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            written += varint(number << 3 | 2) + varint(len(content)) + content
    return written
