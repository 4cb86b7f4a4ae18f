"""Sites of small changes to modules, and rooms: parts of the packages with their tests."""

from __future__ import annotations

import ast
import copy
import difflib
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: Tests by package. Only these tests count for mutants of the package.
PACKAGES = {
    "in_process/tritonfrontend": ("tests/in_process",),
    "in_process/tritonserver": ("tests/in_process",),
    "plugin/ge_runtime": ("tests/runtime",),
    "reference_server": ("tests/server", "tests/recorded"),
    "replay/triton_replay": ("tests/replay",),
    "simulator/ascend_simulator": ("tests/simulator",),
}


@dataclass(frozen=True)
class Room:
    """A part of the packages."""

    files: tuple[str, ...]
    """Folders, and patterns of files."""
    tests: tuple[str, ...]
    """Folders of tests that may run the room's lines."""


_GE = "plugin/ge_runtime"
ROOMS = {
    **{package: Room((package,), tests) for package, tests in PACKAGES.items()},
    "ascend": Room(
        (
            f"{_GE}/adapters/jpeg_inputs.py",
            f"{_GE}/batching/images.py",
            f"{_GE}/cli/bench.py",
            f"{_GE}/cli/build.py",
            f"{_GE}/cli/compare",
            f"{_GE}/cli/doctor/ascend_checks.py",
            f"{_GE}/cli/probe_device",
            *(f"{_GE}/config/{name}.py" for name in ("cards", "execution_settings", "images")),
            f"{_GE}/devices/__init__.py",
            f"{_GE}/devices/jpeg.py",
            f"{_GE}/npu/driver",
            f"{_GE}/npu/engines",
            *(f"{_GE}/npu/service/{name}.py" for name in ("messages", "resident")),
            f"{_GE}/planning/ascend_gears.py",
        ),
        (
            *(f"tests/runtime/{name}" for name in ("cli/compare", "config", "devices")),
            *(f"tests/runtime/npu/{name}" for name in ("driver", "engines")),
            *(f"tests/runtime/cli/test_{name}.py" for name in ("bench", "build", "probe_device")),
            "tests/runtime/cli/test_doctor_checks.py",
            *(f"tests/runtime/engines/test_{name}.py" for name in ("artifact", "backend", "fakes")),
            "tests/runtime/adapters/test_jpeg_inputs.py",
            "tests/runtime/batching/test_images.py",
            "tests/runtime/planning/test_ascend_gears.py",
            *(
                f"tests/runtime/npu/service/test_{name}.py"
                for name in ("bad_resident_clients", "card", "resident", "row_pool")
            ),
        ),
    ),
}


def files(tree: Path, room: str) -> Iterator[Path]:
    """Yield all modules of a room."""
    for pattern in ROOMS[room].files:
        found = tree.glob(pattern)
        yield from sorted(
            path for each in found for path in (each.rglob("*.py") if each.is_dir() else [each])
        )


def package_of(file: str) -> str:
    """Return the package of a module."""
    return next(package for package in PACKAGES if file.startswith(package))


#: Least similarity of two statements that count as the same.
ALIKE = 0.75

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
#: Conditions that have special changes; any other condition is negated as a whole.
_COMPOSED = (ast.Compare, ast.BoolOp, ast.UnaryOp)
_Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Simple = ast.Return | ast.Assign | ast.AugAssign | ast.Expr | ast.AnnAssign | ast.Raise


@dataclass(frozen=True)
class Site:
    """A site of one change: the statement, the kind of the change, and its index there."""

    file: str
    function: str
    """The qualified name; empty for code that runs at import."""
    line: int
    statement: str
    """The code; for `if` and `while` the keyword and the condition."""
    kind: str
    number: int
    """The index among the places in the statement where this type of change can be made."""

    @property
    def room(self) -> str:
        """The file's folder, as tables show it."""
        return str(Path(self.file).parent)


@dataclass(frozen=True)
class Place:
    """A statement, or a condition, in the tree of a module."""

    defs: tuple[_Def, ...]
    node: ast.stmt | ast.expr
    text: str

    @property
    def function(self) -> str:
        return ".".join(each.name for each in self.defs)


class _Change(ast.NodeTransformer):
    """Makes the change `kind` at its `number`-th place; counts the places of each kind."""

    def __init__(self, kind: str = "", number: int = -1) -> None:
        self.counts: dict[str, int] = {}
        self._wanted = kind, number

    def _is_here(self, kind: str) -> bool:
        number = self.counts.get(kind, 0)
        self.counts[kind] = number + 1
        return (kind, number) == self._wanted

    def statement(self, node: ast.AST) -> ast.AST:
        """Visit a statement or condition, and everything in it."""
        if isinstance(node, ast.expr):
            if not isinstance(node, _COMPOSED) and self._is_here("condition"):
                return ast.UnaryOp(ast.Not(), node)
        elif _can_be_left_out(node) and self._is_here("left out"):
            return ast.Pass()
        changed: ast.AST = self.visit(node)
        return changed

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node  # texts are not tested

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        other = COMPARISONS.get(type(node.ops[0]))
        if other and self._is_here("comparison"):
            node.ops[0] = other()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        other = ARITHMETIC.get(type(node.op))
        if other and self._is_here("arithmetic"):
            node.op = other()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._is_here("and or"):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._is_here("not"):
            return node.operand
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is int and self._is_here("number"):
            return ast.Constant(node.value + 1)
        if type(node.value) is bool and self._is_here("truth"):
            return ast.Constant(not node.value)
        return node


def _can_be_left_out(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


@cache
def sites(tree: Path, room: str) -> tuple[Site, ...]:
    """Return all sites of a room."""
    return tuple(_sites(tree, room))


def _sites(tree: Path, room: str) -> Iterator[Site]:
    for path in files(tree, room):
        file = str(path.relative_to(tree))
        for place in places(ast.parse(path.read_text())):
            counter = _Change()
            counter.statement(copy.deepcopy(place.node))
            for kind, count in counter.counts.items():
                for number in range(count):
                    line = place.node.lineno
                    yield Site(file, place.function, line, place.text, kind, number)


def places(node: ast.AST, defs: tuple[_Def, ...] = ()) -> Iterator[Place]:
    """Yield simple statements and conditions, each with the definitions around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Def):
            yield from places(child, (*defs, child))
        elif isinstance(child, _Simple):
            if not _is_docstring(child):
                yield Place(defs, child, ast.unparse(child))
        else:
            if isinstance(child, ast.If | ast.While):
                word = "if" if isinstance(child, ast.If) else "while"
                if ast.unparse(child.test) != "TYPE_CHECKING":
                    yield Place(defs, child.test, f"{word} {ast.unparse(child.test)}")
            yield from places(child, defs)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def choose(
    tree: Path, room: str, count: int, seed: int, only: Collection[str] | None = None
) -> list[Site]:
    """Return places, spread evenly over the folders.

    Args:
        tree: The checkout.
        room: Name of the room.
        count: Largest number of places.
        seed: Seed of the choice.
        only: Files to choose from, relative to the tree; None for all.
    """
    dice = random.Random(seed)
    folders: dict[str, list[Site]] = {}
    for site in sites(tree, room):
        if only is None or site.file in only:
            folders.setdefault(site.room, []).append(site)
    for found in folders.values():
        dice.shuffle(found)
    chosen: list[Site] = []
    while len(chosen) < count and any(folders.values()):
        for found in folders.values():
            if found and len(chosen) < count:
                chosen.append(found.pop())
    return chosen


def find(tree: Path, site: Site) -> Site | None:
    """Return the place in another tree that is most similar to `site`; None if none is similar."""
    best, found = 0.0, None
    matcher = difflib.SequenceMatcher(None, "", site.statement, False)
    room = package_of(site.file)
    assert room in ROOMS
    for other in sites(tree, room):
        if (other.kind, other.number) != (site.kind, site.number):
            continue
        if abs(len(other.statement) - len(site.statement)) > len(site.statement) // 2 + 8:
            continue
        matcher.set_seq1(other.statement)
        if matcher.quick_ratio() < ALIKE or (alike := matcher.ratio()) < ALIKE:
            continue
        # Among equal statements, prefer similar names of function and file, then the nearest line.
        names = difflib.SequenceMatcher(None, site.function, other.function, False).ratio()
        paths = difflib.SequenceMatcher(None, site.file, other.file, False).ratio()
        far = min(abs(other.line - site.line), 1000) / 1e6
        score = alike * (0.6 + 0.3 * names + 0.1 * paths) - far
        if score > best:
            best, found = score, other
    return found


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    source: str
    first: int
    last: int
    """The lines of the statement before the change."""
    defs: tuple[tuple[str, int], ...]
    """Name and first line of each definition around the statement."""
    in_function: bool
    """True if the statement runs in a function, not at import."""


def mutant(source: str, site: Site) -> Mutant:
    """Return the source with the change: only the changed statement is written anew."""
    for place in places(ast.parse(source)):
        node = place.node
        if (node.lineno, place.text, place.function) == (site.line, site.statement, site.function):
            first, last = node.lineno, node.end_lineno or node.lineno
            changed = _Change(site.kind, site.number).statement(copy.deepcopy(node))
            text = ast.unparse(ast.fix_missing_locations(changed))
            if isinstance(node, ast.expr):
                text = f"({text})"
            lines = source.splitlines(keepends=True)
            before = lines[first - 1].encode()[: node.col_offset].decode()
            after = lines[last - 1].encode()[node.end_col_offset :].decode()
            indent = " " * node.col_offset
            text = text.replace("\n", f"\n{indent}")
            lines[first - 1 : last] = [before + text + after]
            return Mutant(
                "".join(lines),
                first,
                last,
                tuple((each.name, _first_line(each)) for each in place.defs),
                bool(place.defs) and not isinstance(place.defs[-1], ast.ClassDef),
            )
    raise AssertionError(site)


def _first_line(definition: _Def) -> int:
    return min([definition.lineno, *(each.lineno for each in definition.decorator_list)])
