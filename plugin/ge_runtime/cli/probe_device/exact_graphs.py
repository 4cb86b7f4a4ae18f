"""Graphs whose results are exact, written as .onnx files without the package onnx.

The output `y` is the FP32 input `x`, rolled along its second dimension by one for each layer. Each
layer multiplies with a permutation: no sum has more than one term other than 0, so FP16 computes
the same numbers as FP32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.engines.analysis.protobuf import varint

Gear: TypeAlias = "int | tuple[int, ...]"
Field: TypeAlias = "tuple[int, int | str | bytes]"

_FP32: Final = 1
_IR_VERSION: Final = 8
_OPSET: Final = 13


@dataclass(frozen=True)
class ExactGraph:
    """A chain of equal layers that roll the second dimension. See `rolling_matmul`."""

    name: str
    """A unique name; the base name of the graph's files."""
    operator: str
    """The ONNX operator of each layer."""
    layers: int
    dims: tuple[int | str, ...]
    """Dims of `x` and `y`; a text is the name of a variable dim."""
    largest: tuple[int, ...]
    """The largest shape of `x` and `y`."""
    flags: tuple[str, ...]
    """ATC's flags that set the sizes of `x`."""
    gears: tuple[Gear, ...] = ()

    def shape(self, gear: Gear | None = None) -> tuple[int, ...]:
        """Return the shape of `x` and `y` at a gear, or the largest."""
        sizes = iter(() if gear is None else (gear,) if isinstance(gear, int) else gear)
        return tuple(
            next(sizes, size) if isinstance(dim, str) else size
            for dim, size in zip(self.dims, self.largest, strict=True)
        )

    def onnx_file(self) -> bytes:
        """Return the graph as an .onnx file."""
        # The numbers are field numbers of NodeProto, TensorProto, ValueInfoProto, GraphProto and
        # ModelProto in onnx.proto3.
        names = ["x", *(f"moved_{layer}" for layer in range(1, self.layers)), "y"]
        nodes = [
            _message((1, source), (1, "permutation"), (2, y), (3, f"to_{y}"), (4, self.operator))
            for source, y in pairwise(names)
        ]
        permutation = self._permutation()
        sizes: list[Field] = [(1, size) for size in permutation.shape]
        weights = _message(*sizes, (2, _FP32), (8, "permutation"), (9, permutation.tobytes()))
        dims = (_message((2 if isinstance(dim, str) else 1, dim)) for dim in self.dims)
        shape = _message(*((1, dim) for dim in dims))
        tensor = _message((1, _message((1, _FP32), (2, shape))))
        ends = [(11, _message((1, "x"), (2, tensor))), (12, _message((1, "y"), (2, tensor)))]
        content = _message(*((1, node) for node in nodes), (2, "moving"), (5, weights), *ends)
        opset = _message((1, ""), (2, _OPSET))
        producer = "ge-runtime probe-device"
        return _message((1, _IR_VERSION), (2, producer), (7, content), (8, opset))

    def _permutation(self) -> NDArray[np.float32]:
        size = self.largest[1]
        eye = np.eye(size, dtype=np.float32)
        if self.operator == "MatMul":
            return np.roll(eye, 1, axis=1)
        return np.roll(eye, 1, axis=0).reshape(size, size, 1, 1)


def rolling_matmul(
    rows: int = 64, width: int = 512, layers: int = 16, gears: tuple[int, ...] = (), least: int = 0
) -> ExactGraph:
    """Return a chain of matrix products of [rows, width].

    Args:
        rows: the largest number of rows.
        width: the size of the second dimension.
        layers: the number of products.
        gears: numbers of rows to compile for; () for `rows` only.
        least: without gears, compile for `least` to `rows` rows; 0 for `rows` only.
    """
    name = "_".join(map(str, gears or (rows,)))
    name = f"{least}_to_{name}" if least else name
    sizes = f"{least}~{rows}" if least else "-1" if gears else str(rows)
    flags = [f"--input_shape=x:{sizes},{width}", "--input_format=ND"]
    if gears:
        flags.append(f"--dynamic_batch_size={','.join(map(str, gears))}")
    return ExactGraph(
        name=f"{name}_by_{width}_times_{layers}",
        operator="MatMul",
        layers=layers,
        dims=("rows" if gears or least else rows, width),
        largest=(rows, width),
        flags=tuple(flags),
        gears=gears,
    )


def rolling_conv(
    channels: int = 16,
    gears: tuple[tuple[int, int], ...] = ((8, 32), (64, 16)),
    aipp: Path | None = None,
) -> ExactGraph:
    """Return one convolution of [1, channels, height, width].

    Args:
        channels: the size of the second dimension.
        gears: pairs of height and width, fewest elements first. One pair is a fixed size.
        aipp: ATC's --insert_op_conf, for one gear.
    """
    name = f"{channels}_of_{'_'.join(f'{high}x{wide}' for high, wide in gears)}"
    if len(gears) == 1:
        high, wide = gears[0]
        dims: tuple[int | str, ...] = (1, channels, high, wide)
        flags = [f"--input_shape=x:1,{channels},{high},{wide}", "--input_format=NCHW"]
        flags += [f"--insert_op_conf={aipp}"] if aipp else []
    else:
        dims = (1, channels, "height", "width")
        sizes = ";".join(f"{high},{wide}" for high, wide in gears)
        flags = [f"--input_shape=x:1,{channels},-1,-1", "--input_format=NCHW"]
        flags.append(f"--dynamic_image_size={sizes}")
    return ExactGraph(
        name=f"{name}_of_{aipp.stem}" if aipp else name,
        operator="Conv",
        layers=1,
        dims=dims,
        largest=(1, channels, *gears[-1]),
        flags=tuple(flags),
        gears=gears,
    )


def exact_input(shape: Sequence[int]) -> NDArray[np.float32]:
    """Return an `x` of whole numbers that FP16 represents, without equal neighbours.

    In C order the elements of a smaller input are the first elements of a larger input.
    """
    # FP16 represents all whole numbers up to 2048.
    return (np.arange(math.prod(shape), dtype=np.float32) % 1999).reshape(shape)


def rolled(x: NDArray[np.float32], layers: int) -> NDArray[np.float32]:
    """Return the expected `y` of an `x`."""
    return np.roll(x, layers, axis=1)


def _message(*fields: Field) -> bytes:
    """Encode a protobuf message of numbered fields: integers, texts, and encoded messages."""
    encoded = b""
    for number, value in fields:
        if isinstance(value, int):
            encoded += varint(number << 3) + varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            encoded += varint(number << 3 | 2) + varint(len(content)) + content
    return encoded
