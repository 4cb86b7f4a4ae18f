"""Random inputs, with shapes and values that may depend on drawn sizes."""

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
    """The description of an input. A text in `dims`, `low` or `high` is the size of an axis.

    Args:
        name: Name of the input.
        datatype: Triton's name of the datatype.
        dims: The shape.
        low: Smallest value; of BYTES the smallest length of an element.
        high: Largest value, inclusive; of BYTES the largest length.
    """

    name: str
    datatype: str
    dims: tuple[int | str, ...]
    low: int | str
    high: int | str

    def make(self, sizes: Mapping[str, int], chance: random.Random) -> tuple[dict[str, Any], bytes]:
        """Return the JSON and the binary data of a random input."""
        shape = [_size(dim, sizes) for dim in self.dims]
        low, high = self._bounds(sizes)
        count = int(np.prod(shape, dtype=np.int64))
        # Random bytes are reproducible by a seed in all versions of Python and NumPy.
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
        """Raise ReplayError if the datatype cannot represent the values."""
        dtype = _DTYPES.get(self.datatype)
        # Values of 32 bits suffice for tokens and lengths of 64 bits.
        largest = 2**32 - 1
        if dtype is not None and dtype.kind in "iu":
            largest = min(int(np.iinfo(dtype).max), largest)
        _, high = self._bounds(sizes)
        if high > largest:
            raise ReplayError(f"--input: {self.name}: found {high}, expected at most {largest}")

    def _bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        low = _size(self.low, sizes)
        return low, max(_size(self.high, sizes), low)


def parse_input(text: str, axes: Sequence[str]) -> InputPlan:
    """Parse `NAME:DATATYPE:DIMS[=VALUES]`. Raise ReplayError if it is invalid."""
    found = _FORM.fullmatch(text)
    if not found or (found["datatype"] not in _DTYPES and found["datatype"] != "BYTES"):
        raise ReplayError(f"--input: found {text!r}, expected {EXPECTED}")
    datatype = found["datatype"]
    low = found["value"] or ("8" if datatype == "BYTES" else "0")
    high = found["high"] or found["value"] or ("8" if datatype == "BYTES" else "1")
    words = [_word(word, text, axes) for word in (*found["dims"].split(","), low, high)]
    *dims, least, most = words
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise ReplayError(f"--input: {text!r}: found {least} as LOW, expected at most {most}")
    return InputPlan(found["name"], datatype, tuple(dims), least, most)


def make_body(
    inputs: Sequence[InputPlan], sizes: Mapping[str, int], chance: random.Random
) -> tuple[Headers, bytes]:
    """Return the header and the body of a random inference, with binary outputs."""
    made = [one.make(sizes, chance) for one in inputs]
    document = {"inputs": [one for one, _ in made], "parameters": {"binary_data_output": True}}
    return tensor_body(document, [data for _, data in made])


def _word(word: str, text: str, axes: Sequence[str]) -> int | str:
    if word.isdigit():
        return int(word)
    if word not in axes:
        known = ", ".join(axes) or "of --sizes"
        raise ReplayError(
            f"--input: {text!r}: found {word!r}, expected a number or an axis: {known}"
        )
    return word


def _size(word: int | str, sizes: Mapping[str, int]) -> int:
    return sizes[word] if isinstance(word, str) else word


def _text(length: int, chance: random.Random) -> bytes:
    return bytes(97 + byte % 26 for byte in chance.randbytes(length))
