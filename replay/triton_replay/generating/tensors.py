"""Inputs made up: shapes by the sizes that were drawn, values by chance or by a size."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from triton_replay.errors import ReplayError
from triton_replay.wire.bodies import Headers, tensor_body

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BOOL": np.dtype(np.bool_),
}
_FORM: Final = re.compile(
    r"(?P<name>[^:]+):(?P<datatype>[A-Z0-9]+):(?P<dims>\w+(,\w+)*)"
    r"(=(?P<value>\w+)(\.\.(?P<high>\w+))?)?",
    re.ASCII,
)
EXPECTED: Final = "NAME:DATATYPE:DIM,...[=VALUE or =LOW..HIGH]"


@dataclass(frozen=True)
class InputPlan:
    """How an input is made; a text stands for the size of its axis.

    low, high: values lie between them, both included; of BYTES the lengths of the elements.
    """

    name: str
    datatype: str
    dims: tuple[int | str, ...]
    low: int | str
    high: int | str

    def make(self, sizes: Mapping[str, int], chance: random.Random) -> tuple[dict[str, Any], bytes]:
        """Its JSON and its bytes."""
        shape = [_size(dim, sizes) for dim in self.dims]
        low, high = self._bounds(sizes)
        count = int(np.prod(shape, dtype=np.int64))
        # Of bytes, whose sequence for a seed is the same in all versions of Python and NumPy.
        drawn = np.frombuffer(chance.randbytes(4 * count), "<u4").astype(np.uint64)
        if self.datatype == "BYTES":
            lengths = [low + int(one) % (high - low + 1) for one in drawn]
            data = b"".join(n.to_bytes(4, "little") + _text(n, chance) for n in lengths)
        elif self.datatype.startswith("FP"):
            share = drawn / 2**32
            data = (low + share * (high - low)).astype(_DTYPES[self.datatype]).tobytes()
        else:
            whole = low + (drawn % np.uint64(high - low + 1)).astype(np.int64)
            data = whole.astype(_DTYPES[self.datatype]).tobytes()
        described = {"name": self.name, "datatype": self.datatype, "shape": shape}
        return described | {"parameters": {"binary_data_size": len(data)}}, data

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise ReplayError for values that its type has not."""
        dtype = _DTYPES.get(self.datatype)
        # Of values with 64 bits those of 32 are enough for tokens and lengths.
        largest = 2**32 - 1
        if dtype is not None and dtype.kind in "iu":
            largest = min(int(np.iinfo(dtype).max), largest)
        _, high = self._bounds(sizes)
        if high > largest:
            raise ReplayError(f"--input: {self.name}: {high} is more than {largest}")

    def _bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        low = _size(self.low, sizes)
        return low, max(_size(self.high, sizes), low)


def parse_input(text: str, axes: Sequence[str]) -> InputPlan:
    """Read `NAME:DATATYPE:DIMS[=VALUES]`. Raises ReplayError."""
    found = _FORM.fullmatch(text)
    if not found or (found["datatype"] not in _DTYPES and found["datatype"] != "BYTES"):
        raise ReplayError(f"--input: found {text!r}, expected {EXPECTED}")
    datatype = found["datatype"]
    low = found["value"] or ("8" if datatype == "BYTES" else "0")
    high = found["high"] or found["value"] or ("8" if datatype == "BYTES" else "1")
    words = [_word(word, text, axes) for word in (*found["dims"].split(","), low, high)]
    *dims, least, most = words
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise ReplayError(f"--input: {text!r}: {least} is above {most}")
    return InputPlan(found["name"], datatype, tuple(dims), least, most)


def make_body(
    inputs: Sequence[InputPlan], sizes: Mapping[str, int], chance: random.Random
) -> tuple[Headers, bytes]:
    """The header and the body of an inference; its answer is to come in bytes."""
    made = [one.make(sizes, chance) for one in inputs]
    document = {"inputs": [one for one, _ in made], "parameters": {"binary_data_output": True}}
    return tensor_body(document, [data for _, data in made])


def _word(word: str, text: str, axes: Sequence[str]) -> int | str:
    if word.isdigit():
        return int(word)
    if word not in axes:
        known = ", ".join(axes) or "none: --sizes names them"
        raise ReplayError(f"--input: {text!r}: {word!r} is no number and no axis; axes: {known}")
    return word


def _size(word: int | str, sizes: Mapping[str, int]) -> int:
    return sizes[word] if isinstance(word, str) else word


def _text(length: int, chance: random.Random) -> bytes:
    return bytes(97 + byte % 26 for byte in chance.randbytes(length))
