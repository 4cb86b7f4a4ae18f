"""Changes the last bits of a graph's weights, so that every layer rounds differently.

Weights that are whole numbers stay, as a graph may convert them to indices or sizes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.engines.analysis.onnx_file import (
    DATA_TYPE,
    DIMS,
    EXTERNAL_DATA,
    KEY,
    MESSAGES,
    VALUE,
)
from ge_runtime.engines.analysis.protobuf import fields, varints
from ge_runtime.specs import Array

_SIZES: Final = range(2, 9)
"""Vectors of this many floats may be sizes, such as the scales of Resize, and stay as they are."""
_TYPES: Final = {1: ("<u4", "<f4"), 10: ("<u2", "<f2"), 11: ("<u8", "<f8"), 16: ("<u2", "")}
"""The NumPy types of the bits and of the values of floats, by TensorProto.DataType."""
_INPUT: Final = 1
_NAME, _FLOAT_DATA, _RAW_DATA, _DOUBLE_DATA = 8, 4, 9, 10


def nudge(bits: NDArray[Any], float_type: str, rng: np.random.Generator) -> None:
    """Change the last bits of half of the weights in place.

    Args:
        bits: The weights as integers, in the shape of their tensor.
        float_type: The NumPy type of the weights; empty for BFLOAT16, for which NumPy has none.
        rng: Selects the weights.
    """
    if bits.ndim == 1 and bits.size in _SIZES:
        return
    values = bits.view(float_type) if float_type else (bits.astype("<u4") << 16).view("<f4")
    with np.errstate(invalid="ignore"):
        changes = np.isfinite(values) & (values != np.rint(values))
    bits ^= (changes & rng.integers(0, 2, bits.shape, dtype=np.bool_)).astype(bits.dtype)


def nudged_weights(path: Path, rng: np.random.Generator) -> tuple[bytearray, dict[str, Array]]:
    """Return a .onnx file in which the last bits of half of the weights differ.

    Args:
        path: The file.
        rng: Selects the weights.

    Returns:
        The content of the file, and the changed weights of its external files by name. External
        weights of BFLOAT16, and external weights inside of branches and loops, stay as they are.
    """
    content = bytearray(path.read_bytes())
    nudging = _Nudging(rng, path.parent)
    with memoryview(content) as view:
        nudging.nudge_within(view, "model")
    # ONNX Runtime removes unused weights, and fails if it is given an unused weight.
    return content, {
        name: nudging.external[name] for name in nudging.external.keys() & nudging.used
    }


class _Nudging:
    """Changes the tensors of one file."""

    def __init__(self, rng: np.random.Generator, folder: Path) -> None:
        self._rng = rng
        self._folder = folder
        self.external: dict[str, Array] = {}
        self.used: set[str] = set()
        """Names that nodes read."""

    def nudge_within(self, message: memoryview, kind: str, *, outside: bool = True) -> None:
        """Nudge the tensors in a message; `outside` is False within nodes and functions."""
        if kind == "tensor":
            self._nudge_tensor(message, outside=outside)
            return
        inner = MESSAGES[kind]
        for number, _, content in fields(message):
            if number in inner:
                outer = outside and inner[number] in ("graph", "tensor")
                self.nudge_within(content, inner[number], outside=outer)
            elif kind == "node" and number == _INPUT:
                self.used.add(str(content, "utf-8", "replace"))

    def _nudge_tensor(self, message: memoryview, *, outside: bool) -> None:
        dims: list[int] = []
        data_type, name = 0, ""
        elements = None
        place: dict[str, str] = {}
        for number, _, content in fields(message):
            if number == DIMS:
                dims += varints(content)
            elif number == DATA_TYPE:
                (data_type,) = varints(content)
            elif number == _NAME:
                name = str(content, "utf-8", "replace")
            elif number in (_FLOAT_DATA, _RAW_DATA, _DOUBLE_DATA):
                elements = content
            elif number == EXTERNAL_DATA:
                entry = {part: str(text, "utf-8", "replace") for part, _, text in fields(content)}
                place[entry.get(KEY, "")] = entry.get(VALUE, "")
        if data_type not in _TYPES:
            return
        bits_type, float_type = _TYPES[data_type]
        count = math.prod(dims)
        if elements is not None:
            # The sizes differ, for example, for a single float that is not packed.
            if len(elements) == count * np.dtype(bits_type).itemsize:
                nudge(np.frombuffer(elements, bits_type).reshape(dims), float_type, self._rng)
        elif "location" in place and float_type and outside:
            start = int(place.get("offset", 0))
            bits = np.fromfile(self._folder / place["location"], bits_type, count, offset=start)
            if bits.size == count:
                nudge(bits.reshape(dims), float_type, self._rng)
                self.external[name] = bits.reshape(dims).view(float_type)
