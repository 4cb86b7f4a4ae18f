"""Mutants: small wrong changes to the packages, to see which of them the tests notice.

    python -m tools.mutants choose --count 200 --seed 11 > mutants.json
    python -m tools.mutants play mutants.json played.jsonl           in this tree
    python -m tools.mutants play mutants.json other.jsonl --tree ../other   in another state of it
    python -m tools.mutants compare played-before.jsonl played-after.jsonl

`choose` spreads them over the rooms of `ge_runtime` and `reference_server`. A mutant is known by
the statement that it changes and by the function around it, not by its line, so that it can be
played in a tree whose files and names have changed: there it is the most similar statement in which
the same change can be made. One that is not found is told, and is for a person to place.

`play` puts one mutant at a time into the tree, runs the tests of its room until one fails, and
takes it out again. The tree must be a clean checkout with an environment in `.venv`. What is known
is written as soon as it is; called again with the same file, `play` goes on with what is missing.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"plugin/ge_runtime": "tests/runtime", "reference_server": "tests/server"}
#: The tests of a room that need no other server.
SELECTION = "not oracle and not stack and not gpu"
#: A mutant may hang: so long may one test take, and so long the tests of a room.
TEST_SECONDS = 120
SECONDS = 900
#: What becomes of a mutant that tests notice.
NOTICED = ("killed", "hung")
#: A statement less alike than this is another one.
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


@dataclass(frozen=True)
class Site:
    """A place where one change can be made: which expression of which statement, and how."""

    file: str
    function: str
    line: int
    statement: str
    kind: str
    number: int
    """Of the places in the statement where this kind of change can be made."""


class _Change(ast.NodeTransformer):
    """Makes the change `kind` at its `number`-th place; counts the places of each kind."""

    def __init__(self, kind: str = "", number: int = -1) -> None:
        self.counts: dict[str, int] = {}
        self._wanted = kind, number

    def _is_here(self, kind: str) -> bool:
        number = self.counts.get(kind, 0)
        self.counts[kind] = number + 1
        return (kind, number) == self._wanted

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


@cache
def sites(tree: Path, package: str) -> tuple[Site, ...]:
    """All places of a package where a change can be made."""
    return tuple(_sites(tree, package))


def _sites(tree: Path, package: str) -> Iterator[Site]:
    for path in sorted((tree / package).rglob("*.py")):
        file = str(path.relative_to(tree))
        for function, statement in statements(ast.parse(path.read_text())):
            text = ast.unparse(statement)
            counter = _Change()
            counter.visit(ast.parse(text))
            for kind, count in counter.counts.items():
                for number in range(count):
                    yield Site(file, function, statement.lineno, text, kind, number)


def statements(tree: ast.AST, around: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """The simple statements in functions, each with the name of its function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from statements(node, f"{around}.{node.name}".lstrip("."))
        elif isinstance(node, ast.Return | ast.Assign | ast.AugAssign | ast.Expr | ast.AnnAssign):
            if around and not _is_docstring(node):
                yield around, node
        else:
            yield from statements(node, around)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def choose(tree: Path, count: int, seed: int) -> list[Site]:
    """So many places, as evenly over the rooms as they have any."""
    dice = random.Random(seed)
    rooms: dict[str, list[Site]] = {}
    for package in PACKAGES:
        for site in sites(tree, package):
            rooms.setdefault(str(Path(site.file).parent), []).append(site)
    for places in rooms.values():
        dice.shuffle(places)
    chosen: list[Site] = []
    while len(chosen) < count and any(rooms.values()):
        for places in rooms.values():
            if places and len(chosen) < count:
                chosen.append(places.pop())
    return chosen


def find(tree: Path, site: Site) -> Site | None:
    """The same place in a tree; None if there is nothing like it."""
    package = next(name for name in PACKAGES if site.file.startswith(name))
    best, found = 0.0, None
    matcher = difflib.SequenceMatcher(None, "", site.statement, False)
    for other in sites(tree, package):
        if (other.kind, other.number) != (site.kind, site.number):
            continue
        if abs(len(other.statement) - len(site.statement)) > len(site.statement) // 2 + 8:
            continue
        matcher.set_seq1(other.statement)
        if matcher.quick_ratio() < ALIKE or (alike := matcher.ratio()) < ALIKE:
            continue
        # Of equal statements the one in the function and the file with the most similar names.
        names = difflib.SequenceMatcher(None, site.function, other.function, False).ratio()
        files = difflib.SequenceMatcher(None, site.file, other.file, False).ratio()
        score = alike * (0.6 + 0.3 * names + 0.1 * files)
        if score > best:
            best, found = score, other
    return found


def play(tree: Path, chosen: Iterable[Site]) -> Iterator[dict[str, object]]:
    """Play each mutant: what became of it, and where it was."""
    for site in chosen:
        here = find(tree, site)
        result: dict[str, object] = {"mutant": asdict(site)}
        if here is None:
            yield result | {"outcome": "not found"}
            continue
        path = tree / here.file
        before = path.read_text()
        try:
            path.write_text(mutated(before, here))
            outcome, test = run_tests(tree, here)
        finally:
            path.write_text(before)
        yield result | {"here": asdict(here), "outcome": outcome, "test": test}


def mutated(source: str, site: Site) -> str:
    """The source with the change: the statement is written anew, all else stays as it is."""
    module = ast.parse(source)
    for _, statement in statements(module):
        if statement.lineno == site.line and ast.unparse(statement) == site.statement:
            changed = _Change(site.kind, site.number).visit(ast.parse(site.statement))
            lines = source.splitlines(keepends=True)
            indent = " " * statement.col_offset
            text = "".join(f"{indent}{line}\n" for line in ast.unparse(changed).splitlines())
            lines[statement.lineno - 1 : statement.end_lineno] = [text]
            return "".join(lines)
    raise AssertionError(site)


def run_tests(tree: Path, site: Site) -> tuple[str, str]:
    """`killed` and the first test that fails, `hung`, or `survived`.

    Hung is told apart, since a busy machine can be the cause as well.
    """
    command = [".venv/bin/python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-o", f"faulthandler_timeout={TEST_SECONDS}"]
    command += ["-o", "faulthandler_exit_on_timeout=true", "-m", SELECTION, *tests_of(tree, site)]
    # Without compiled files each run would rewrite all assertions anew.
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    # A session of its own, and no pipe: what hangs, or stays behind, may be a process of a test's.
    with tempfile.TemporaryFile("w+") as written:
        running = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            running.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return "hung", "the room's tests had no end"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        written.seek(0)
        output = written.read()
    if running.returncode == 0:
        return "survived", ""
    if "Timeout (0:" in output:
        return "hung", output[-1500:]
    # Lines of the log begin with their level as well.
    failed = re.search(r"^(FAILED|ERROR) (tests/.*)", output, re.MULTILINE)
    return "killed", failed[0] if failed else f"exit code {running.returncode}: {output[-400:]}"


def tests_of(tree: Path, site: Site) -> list[str]:
    """The tests of the room, those of the very module first."""
    package = next(name for name in PACKAGES if site.file.startswith(name))
    module = Path(site.file).relative_to(package)
    tests = tree / PACKAGES[package]
    room = tests / module.parent
    while not room.is_dir() or not any(room.rglob("test_*.py")):
        room = room.parent
    own = room.rglob(f"test_{module.stem}*.py")
    rest = room.glob("test_*.py") if room == tests else [room]
    return [str(path.relative_to(tree)) for path in [*own, *rest]]


def compare(before: Path, after: Path) -> int:
    """Print what was killed before and no longer is; the exit code says whether there is any."""
    played = [
        {json.dumps(line["mutant"], sort_keys=True): line for line in map(json.loads, text)}
        for text in (before.read_text().splitlines(), after.read_text().splitlines())
    ]
    first, then = played
    for name, results in (("before", first), ("after", then)):
        outcomes = [result["outcome"] for result in results.values()]
        told = ", ".join(f"{outcomes.count(each)} {each}" for each in sorted(set(outcomes)))
        print(f"{name}: {told}")
    lost = [
        (first[mutant], then.get(mutant))
        for mutant in first
        if first[mutant]["outcome"] in NOTICED
        and (mutant not in then or then[mutant]["outcome"] not in NOTICED)
    ]
    for was, now in lost:
        site = was["mutant"]
        outcome = now["outcome"] if now else "not played"
        print(f"{outcome}: {site['file']}:{site['line']} {site['kind']} {site['statement']}")
    print(f"{len(lost)} kills lost")
    return bool(lost)


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="command")
    choosing = commands.add_parser("choose", help="print mutants of this tree")
    choosing.add_argument("--count", type=int, default=200)
    choosing.add_argument("--seed", type=int, default=11)
    choosing.add_argument("--tree", type=Path, default=ROOT)
    playing = commands.add_parser("play", help="print what becomes of mutants")
    playing.add_argument("mutants", type=Path)
    playing.add_argument("played", type=Path)
    playing.add_argument("--tree", type=Path, default=ROOT)
    comparing = commands.add_parser("compare", help="print which kills were lost")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "choose":
        print(
            json.dumps(
                [
                    asdict(site)
                    for site in choose(options.tree.resolve(), options.count, options.seed)
                ],
                indent=1,
            )
        )
        return 0
    if options.command == "compare":
        return compare(options.before, options.after)
    given = [Site(**site) for site in json.loads(options.mutants.read_text())]
    options.played.touch()
    known = [json.loads(line)["mutant"] for line in options.played.read_text().splitlines()]
    missing = [site for site in given if asdict(site) not in known]
    with options.played.open("a") as played:
        for result in play(options.tree.resolve(), missing):
            print(json.dumps(result), file=played, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
