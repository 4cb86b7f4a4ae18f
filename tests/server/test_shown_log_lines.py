"""The log lines in the documentation exist in the code, in that file, at that level.

The lines' numbers change with the code, and are not checked.
"""

import ast
import functools
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "reference_server"
#: The letter, the file and the text; models' own lines have folders before their file.
LINE = re.compile(r'([IWE])\d{4} [\d:.]+ \d+ (\w+\.py):\d+\] (".*")')
LETTERS = {"debug": "I", "info": "I", "warning": "W", "error": "E", "exception": "E"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = [
    pytest.param(*line.groups(), id=f"{page.name} {number}")
    for page in PAGES
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    if (line := LINE.search(text))
]


@functools.cache
def said(file: str) -> list[tuple[str, str]]:
    """Return the level and a pattern of the text of each log call in the files of that name."""
    found = []
    for path in SOURCES.rglob(file):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log"), attr=level),
                    args=[ast.Constant(value=str(text)), *_],
                ):
                    parts = re.split(r"%(?:\.\d)?[sdfgr]", text)
                    found.append((LETTERS[level], ".+".join(map(re.escape, parts))))
    return found


def test_the_documentation_has_log_lines():
    assert len(SHOWN) > 10


@pytest.mark.parametrize(("letter", "file", "text"), SHOWN)
def test_a_documented_line_exists(letter, file, text):
    patterns = [pattern for level, pattern in said(file) if level == letter]
    assert any(re.fullmatch(pattern, json.loads(text), re.DOTALL) for pattern in patterns)
