"""A graph whose answer is known exactly, as an .onnx file; the package onnx is not needed.

`y` is `x`, FP32 [rows, width], with its columns moved on by one for each layer. A layer is a
product with a permutation: no sum has more than one term that is not 0, so FP16 is as exact as
FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Field: TypeAlias = "tuple[int, int | str | bytes]"

_FP32: Final = 1
_OPSET: Final = 13


@dataclass(frozen=True)
class Moving:
    """Such a graph."""

    rows: int = 64
    """The most there are."""
    width: int = 512
    layers: int = 16
    gears: tuple[int, ...] = ()
    """Numbers of rows that it is compiled for; () for `rows` alone."""

    @property
    def name(self) -> str:
        """One for each graph."""
        rows = "_".join(map(str, self.gears or (self.rows,)))
        return f"{rows}_by_{self.width}_times_{self.layers}"


def onnx_file(graph: Moving) -> bytes:
    """Its .onnx file."""
    width = graph.width
    names = ["x", *(f"moved_{layer}" for layer in range(1, graph.layers)), "y"]
    nodes = [
        _message((1, taken), (1, "permutation"), (2, made), (3, f"to_{made}"), (4, "MatMul"))
        for taken, made in pairwise(names)
    ]
    permutation = np.roll(np.eye(width, dtype=np.float32), 1, axis=1)
    weights = _message(
        (1, width), (1, width), (2, _FP32), (8, "permutation"), (9, permutation.tobytes())
    )
    shape = _message((1, _message((2, "rows") if graph.gears else (1, graph.rows))))
    shape += _message((1, _message((1, width))))
    tensor = _message((1, _message((1, _FP32), (2, shape))))
    ends = [(place, _message((1, name), (2, tensor))) for place, name in ((11, "x"), (12, "y"))]
    content = _message(*((1, node) for node in nodes), (2, "moving"), (5, weights), *ends)
    opset = _message((1, ""), (2, _OPSET))
    return _message((1, 8), (2, "ge-runtime settle"), (7, content), (8, opset))


def numbers(rows: int, width: int) -> NDArray[np.float32]:
    """An `x`: whole numbers that FP16 has too, no two neighbours alike."""
    return (np.arange(rows * width, dtype=np.float32) % 1999).reshape(rows, width)


def moved(x: NDArray[np.float32], layers: int) -> NDArray[np.float32]:
    """Its `y`."""
    return np.roll(x, layers, axis=1)


def _message(*fields: Field) -> bytes:
    """Numbered fields as protobuf writes them: whole numbers, texts, and messages in bytes."""
    written = b""
    for number, value in fields:
        if isinstance(value, int):
            written += _varint(number << 3) + _varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            written += _varint(number << 3 | 2) + _varint(len(content)) + content
    return written


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
