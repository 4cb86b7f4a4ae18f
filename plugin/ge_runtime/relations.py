"""Sizes that follow from the sizes of axes: "(height + 1) // 2".

Values only. A relation never falls when an axis grows. So it is largest where the axes are at their
limits, which is where memory is planned, and largest in a batch where the batch is.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, TypeAlias

Term: TypeAlias = "int | str | tuple[Callable[[int, int], int], Term, Term]"
"""A number, the name of an axis, or an operation on two terms."""

_LONGEST: Final = 200
"""Characters. The parser recurses, and no size is that hard to say."""
_WRITTEN: Final = re.compile(r"(?:[A-Za-z_]\w*\b|\d+\b|[\s+*/(),-])+", re.ASCII)
"""Checked before parsing: of other spellings, such as 1if, Python's parser would warn."""
_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_CHOICES: Final[Mapping[str, Callable[[int, int], int]]] = {"max": max, "min": min}
"""Functions of two or more terms. They never fall when a term grows."""


@dataclass(frozen=True, slots=True)
class Relation:
    """An integer expression over axes. Made by `parse`."""

    text: str
    """As Python would write it: without needless brackets and spaces."""
    term: Term

    @classmethod
    def parse(cls, text: str) -> Relation:
        """The relation that `text` writes with + - * // max min and brackets, over axes.

        Raises ValueError with what was expected. No axis may be subtracted or divided by, not
        within brackets either, and no factor of an axis may be negative: then the relation never
        falls when an axis grows.
        """
        if len(text) > _LONGEST or not _WRITTEN.fullmatch(text):
            raise ValueError(_GRAMMAR)
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ValueError(_GRAMMAR) from error
        term = _read(tree)
        if not any(_axes(term)):
            raise ValueError("an expression with an axis; sizes that are fixed belong in dims")
        return cls(ast.unparse(tree), term)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that it depends on, each once, in order."""
        return tuple(dict.fromkeys(_axes(self.term)))

    def size(self, sizes: Mapping[str, int]) -> int:
        """Its value where the axes have these sizes; can be less than 1. KeyError without one."""
        return _value(self.term, sizes)

    def __str__(self) -> str:
        return self.text


_GRAMMAR: Final = "axes and whole numbers with +, -, *, //, max(,), min(,) and brackets"


def _read(node: ast.expr) -> Term:
    """The term of a syntax tree. Raises ValueError unless it never falls when an axis grows."""
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
    # A factor that grows must not meet one below 0. `_least` is the least of either, since what was
    # read so far never falls.
    if isinstance(node.op, ast.Mult) and (
        (varies and _least(left) < 0) or (any(_axes(left)) and _least(right) < 0)
    ):
        raise ValueError("no factor below 0: a size must not fall when an axis grows")
    return _OPERATIONS[type(node.op)], left, right


def _read_choice(node: ast.Call) -> Term:
    """The term of max(...) or min(...), two by two. Raises ValueError as `_read` does."""
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
    """The value where every axis is 1: the least that it can be, as it never falls."""
    return _value(term, dict.fromkeys(_axes(term), 1))


def _value(term: Term, sizes: Mapping[str, int]) -> int:
    if isinstance(term, tuple):
        operate, left, right = term
        return operate(_value(left, sizes), _value(right, sizes))
    return sizes[term] if isinstance(term, str) else term
