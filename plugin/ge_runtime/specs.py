"""Specs of tensors: element types, dimensions with names, and relations between sizes.

A dimension is a fixed size, the name of an axis whose size each request determines, a relation
between axes such as "(height + 1) // 2", or UNKNOWN. The batch dimension is never part of a spec.

A relation never decreases when an axis grows. So its largest value follows from the limits of the
axes, for which memory is planned, and its largest value in a batch from the batch's largest axes.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Term: TypeAlias = "int | str | tuple[Callable[[int, int], int], Term, Term]"
"""A number, the name of an axis, or an operation on two terms."""

_LONGEST: Final = 200
"""Largest length in characters: the parser is recursive. No real size needs a longer text."""
_WRITTEN: Final = re.compile(r"(?:[A-Za-z_]\w*\b|\d+\b|[\s+*/(),-])+", re.ASCII)
"""Checked before parsing: Python's parser warns about other spellings, such as 1if."""
_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_CHOICES: Final[Mapping[str, Callable[[int, int], int]]] = {"max": max, "min": min}
"""Functions of two or more terms that never decrease when a term grows."""


@dataclass(frozen=True, slots=True)
class Relation:
    """An integer expression over axes. Created by `parse`. Immutable."""

    text: str
    """The expression in Python's spelling, without needless parentheses and spaces."""
    term: Term

    @classmethod
    def parse(cls, text: str) -> Relation:
        """Parse an expression over axes with + - * // max min and parentheses.

        No axis may be subtracted or be in a divisor, and no factor of an axis may be negative. This
        ensures that the relation never decreases when an axis grows.

        Args:
            text: The expression.

        Raises:
            ValueError: The expression is not allowed; the text says what was expected.
        """
        if len(text) > _LONGEST or not _WRITTEN.fullmatch(text):
            raise ValueError(_GRAMMAR)
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ValueError(_GRAMMAR) from error
        term = _read(tree)
        if not any(_axes(term)):
            raise ValueError("an expression with an axis; fixed sizes belong in dims")
        return cls(ast.unparse(tree), term)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the expression, each once, in order."""
        return tuple(dict.fromkeys(_axes(self.term)))

    def size(self, sizes: Mapping[str, int]) -> int:
        """Return the value for these sizes of axes; may be below 1. Raises KeyError."""
        return _value(self.term, sizes)

    def __str__(self) -> str:
        return self.text


_GRAMMAR: Final = "axes and whole numbers with +, -, *, //, max(,), min(,) and brackets"


def _read(node: ast.expr) -> Term:
    """Return the term of a syntax tree. Raises ValueError if it can decrease with an axis."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and type(node.value) is int:  # True is a constant too
        return node.value
    if isinstance(node, ast.Call):
        return _read_choice(node)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        raise ValueError(_GRAMMAR)
    left, right = _read(node.left), _read(node.right)
    varies = any(_axes(right))
    if isinstance(node.op, ast.Sub) and varies:
        raise ValueError("no axis to be subtracted: a size must not fall when an axis grows")
    if isinstance(node.op, ast.FloorDiv) and (varies or _least(right) < 1):
        raise ValueError("divisors that are fixed and at least 1")
    # A growing factor must not be multiplied by a negative one. `_least` is the minimum of each
    # factor, as no term read so far decreases.
    if isinstance(node.op, ast.Mult) and (
        (varies and _least(left) < 0) or (any(_axes(left)) and _least(right) < 0)
    ):
        raise ValueError("no factor below 0: a size must not fall when an axis grows")
    return _OPERATIONS[type(node.op)], left, right


def _read_choice(node: ast.Call) -> Term:
    """Return the term of max(...) or min(...), nested in pairs. Raises ValueError."""
    choose = _CHOICES.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if choose is None or len(node.args) < 2 or node.keywords:
        raise ValueError(_GRAMMAR)
    first, *others = map(_read, node.args)
    return reduce(lambda left, right: (choose, left, right), others, first)


def _axes(term: Term) -> Iterator[str]:
    if isinstance(term, str):
        yield term
    elif isinstance(term, tuple):
        yield from _axes(term[1])
        yield from _axes(term[2])


def _least(term: Term) -> int:
    """Return the value with every axis at 1: the minimum, as a term never decreases."""
    return _value(term, dict.fromkeys(_axes(term), 1))


def _value(term: Term, sizes: Mapping[str, int]) -> int:
    if isinstance(term, tuple):
        operate, left, right = term
        return operate(_value(left, sizes), _value(right, sizes))
    return sizes[term] if isinstance(term, str) else term


Array: TypeAlias = NDArray[Any]
Tensors: TypeAlias = Mapping[str, Array]
Dim: TypeAlias = int | str | Relation
Number: TypeAlias = bool | int | float

UNKNOWN: Final = -1
"""A size that is only known after the graph was executed."""

ROWS: Final = "batch"
"""The name of the batch dimension where axes are named; no axis has this name."""

PAST: Final = "past"
"""The axis along which states of sequences grow; its size is 0 at the start of a sequence."""


class DType(Enum):
    """Triton's element types; the values are the names in the protocol."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"
    BF16 = "BF16"

    @classmethod
    def of_config(cls, name: str) -> DType:
        """Return the type that config.pbtxt calls `name`, e.g. TYPE_FP32. Raises KeyError."""
        return _BY_CONFIG_NAME[name]

    @property
    def config_name(self) -> str:
        """The name in config.pbtxt, which calls BYTES TYPE_STRING."""
        return "TYPE_STRING" if self is DType.BYTES else f"TYPE_{self.value}"

    @property
    def library_name(self) -> str:
        """The name in NumPy and torch, e.g. float32. NumPy has no bfloat16; both have no BYTES."""
        return self.value.lower().replace("bf", "bfloat").replace("fp", "float")

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers."""
        return "INT" in self.value

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type of arrays of these elements; BYTES are `bytes` in an object array.

        BF16 is uint16, the bits of the elements, as NumPy has no such type. Batches are built and
        split by moving bits, so nothing needs to compute with such an array. Only the spec
        distinguishes it from UINT16.
        """
        return _NUMPY[self]

    @property
    def largest(self) -> int | float:
        """The largest finite number of this type. Raises KeyError for BOOL and BYTES."""
        return _LARGEST[self]

    def scalar(self, value: Number) -> np.generic:
        """Return `value` as one element of the type `numpy`; for BF16 its bits. Not for BYTES.

        Args:
            value: A number within the range of the type. For BF16 it is rounded from FP32 to the
                nearest, ties to even, as frameworks do.
        """
        if self is DType.BF16:
            return _bfloat16(value)
        scalar: np.generic = self.numpy.type(value)
        return scalar


def _bfloat16(value: float) -> np.uint16:
    if math.isnan(value):  # rounding up the bits of NaN could yield the bits of a number
        return np.uint16(0x7FC0)
    bits = int(np.float32(value).view(np.uint32))
    return np.uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


_NUMPY: Final[Mapping[DType, np.dtype[Any]]] = {
    **{
        dtype: np.dtype(dtype.library_name)
        for dtype in DType
        if dtype not in (DType.BYTES, DType.BF16)
    },
    DType.BYTES: np.dtype(object),
    DType.BF16: np.dtype(np.uint16),
}
_LARGEST: Final[Mapping[DType, int | float]] = {
    DType.BF16: 2.0**128 - 2.0**120,  # FP32's exponents, 8 significant bits
    **{
        member: int(np.iinfo(dtype).max) if dtype.kind in "iu" else float(np.finfo(dtype).max)
        for member, dtype in _NUMPY.items()
        if dtype.kind in "iuf" and member is not DType.BF16
    },
}
_BY_CONFIG_NAME: Final = {member.config_name: member for member in DType}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's name, element type and dimensions, without the batch dimension."""

    name: str
    dtype: DType
    dims: tuple[Dim, ...]
    axes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The names among the dimensions, including names in relations, in order."""

    def __post_init__(self) -> None:
        names: list[str] = []
        for dim in self.dims:
            if isinstance(dim, str):
                names.append(dim)
            elif isinstance(dim, Relation):
                names.extend(dim.axes)
        object.__setattr__(self, "axes", tuple(names))  # it is frozen

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the dimensions with each axis replaced by its size, each relation by its value.

        UNKNOWN stays. The value of a relation may be below 1; callers have to check.

        Args:
            sizes: The size of each axis by name.

        Raises:
            KeyError: An axis has no size.
        """
        if not self.axes:
            return self.dims  # type: ignore[return-value]  # all are integers
        shape = []
        for dim in self.dims:  # a loop: a generator takes twice as long
            if isinstance(dim, int):
                shape.append(dim)
            else:
                shape.append(sizes[dim] if isinstance(dim, str) else dim.size(sizes))
        return tuple(shape)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.dims))}]"
