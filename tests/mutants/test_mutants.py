"""tools/mutants: where changes can be made, and what becomes of them in a small tree."""

import ast
import json
import sys
from pathlib import Path

import pytest

from tools.mutants.__main__ import main
from tools.mutants.playing import read, shown, survivors, table
from tools.mutants.sites import find, mutant, sites

MODULE = '''"""A module."""

LIMIT = 8


class Gate:
    """Lets in what is small."""

    def check(self, size):
        if size > LIMIT or self.shut:
            raise ValueError(size)
        return size + 1

    shut = False

    def wait(self, size):
        while size > 0:
            size -= 1
        return not size

    def never_asked(self):
        return 1
'''
TESTS = """
import pytest
from ge_runtime.gate import Gate

def test_large_is_refused():
    with pytest.raises(ValueError, match="9"):
        Gate().check(9)

def test_small_is_let_in():
    assert Gate().check(1) == 2

def test_it_ends():
    assert Gate().wait(3) is True
"""
PACKAGE = "plugin/ge_runtime"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A checkout with one module and its tests."""
    tree = tmp_path_factory.mktemp("tree")
    for name, text in (
        (f"{PACKAGE}/gate.py", MODULE),
        (f"{PACKAGE}/__init__.py", ""),
        ("tests/runtime/test_gate.py", TESTS),
        (
            "pyproject.toml",
            '[tool.pytest.ini_options]\npythonpath = ["plugin"]\nmarkers = ["oracle", "stack"]\n',
        ),
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / ".venv").symlink_to(sys.prefix)
    return tree


def of(tree, statement, kind):
    (found,) = [
        site
        for site in sites(tree, PACKAGE)
        if (site.statement, site.kind, site.number) == (statement, kind, 0)
    ]
    return found


@pytest.mark.parametrize(
    ("statement", "kind", "line"),
    [
        ("LIMIT = 8", "number", "LIMIT = 9"),
        ("if size > LIMIT or self.shut", "comparison", "if (size >= LIMIT or self.shut):"),
        ("if size > LIMIT or self.shut", "and or", "if (size > LIMIT and self.shut):"),
        ("raise ValueError(size)", "left out", "pass"),
        ("return size + 1", "arithmetic", "return size - 1"),
        ("shut = False", "truth", "shut = True"),
        ("size -= 1", "left out", "pass"),
        ("return not size", "not", "return size"),
    ],
)
def test_a_mutant_differs_in_one_statement(tree, statement, kind, line):
    changed = mutant(MODULE, of(tree, statement, kind)).source
    (new,) = set(changed.splitlines()) - set(MODULE.splitlines())
    assert new.strip() == line
    ast.parse(changed)


@pytest.mark.parametrize(
    ("source", "line"),
    [(MODULE.replace("LIMIT = 8", "LIMIT = 8\nOTHER = 1"), 20), ("LIMIT = 8\n", None)],
)
def test_a_statement_is_found_again_where_lines_have_moved(tree, tmp_path, source, line):
    moved = tmp_path / PACKAGE / "gate.py"
    moved.parent.mkdir(parents=True)
    moved.write_text(source)
    found = find(tmp_path, of(tree, "return not size", "not"))
    assert (found and found.line) == line


@pytest.mark.slow
def test_what_tests_notice_is_killed_and_the_tree_is_as_before(tree, tmp_path):
    mutants, played, lines = (tmp_path / name for name in ("mutants", "played", "map"))
    chosen = [
        of(tree, "LIMIT = 8", "number"),
        of(tree, "if size > LIMIT or self.shut", "comparison"),
        of(tree, "raise ValueError(size)", "left out"),
        of(tree, "return 1", "number"),
        of(tree, "return not size", "not"),
    ]
    mutants.write_text(json.dumps([vars(site) for site in chosen]))
    assert main(["map", "--room", PACKAGE, str(lines), "--tree", str(tree)]) == 0
    again = ["play", str(mutants), str(played), "--map", str(lines), "--tree", str(tree)]
    for _ in range(2):  # the second time nothing is missing
        assert main(again) == 0
    assert len(played.read_text().splitlines()) == len(chosen)
    outcomes = {line["mutant"]["statement"]: line["outcome"] for line in read([played]).values()}
    assert outcomes == {
        "LIMIT = 8": "killed",
        "if size > LIMIT or self.shut": "survived",
        "raise ValueError(size)": "killed",
        "return 1": "survived",
        "return not size": "killed",
    }
    assert (tree / PACKAGE / "gate.py").read_text() == MODULE
    excused = tmp_path / "equivalent.json"
    excused.write_text(json.dumps([{**vars(of(tree, "return 1", "number")), "why": "unused"}]))
    assert f"| {PACKAGE} | 5 | 3 | 1 | 1 | 75.0 % |" in shown(table([played], excused))
    assert survivors([played], excused) == [
        f"{PACKAGE}/gate.py:10 comparison 0: if size > LIMIT or self.shut"
    ]


def test_every_excuse_has_a_reason():
    for row in json.loads(Path("tools/mutants/equivalent.json").read_text()):
        assert row["why"]
