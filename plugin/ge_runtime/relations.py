"""Sizes computed from the sizes of axes, e.g. "(height + 1) // 2".

A relation never decreases when an axis grows. So it is largest at the limits of the axes, for which
memory is planned, and largest in a batch where the axes are.
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
"""Characters. The parser is recursive, and no real size needs a longer text."""
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
            ValueError: The expression is not allowed; with what was expected.
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
    # A growing factor must not be multiplied by a negative one. `_least` is the minimum of either,
    # as no term read so far decreases.
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
