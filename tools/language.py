"""Check that docstrings, comments, texts and pages use plain technical English.

Usage: `python -m tools.language [PATH ...]`; without a path it checks the whole project. A finding
is one line, `path:line: rule: text`; the exit code is 1 if there are any.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
CHECKED: Final = (
    "check",
    "in_process",
    "plugin",
    "reference_server",
    "replay",
    "simulator",
    "docs",
)
PAGES: Final = ("README.md", "CONTRIBUTING.md")

FIRST_WORDS: Final = re.compile(
    r"(What|Whether|How|Where|Who|Whoever|Whom|Whose|Of|Those|These|They|It|Its|The same|As|"
    r"If|When|That|There|And|But|Nobody|Nothing|Everything|Something)\b"
)
"""Words that must not begin a docstring: they begin a clause, or refer to another sentence."""

WORDS: Final = re.compile(
    r"\b(told|tells?|telling|nobody|whoever|whomever|whatever|meanwhile|lest|whence|thereof|therein|"
    r"be it|as ever|so many|so much|(?-i:is none)|lets? go|letting go|of one's own|"
    r"of theirs|taken in|in work|in company|finds no|begins so|comes of|stands there|"
    r"who (?:asks?|talks?|waits?|reads?|writes?|calls?|sends?|has|holds|comes|wants|is|does))\b",
    re.IGNORECASE,
)
"""Old connectives, personification and private synonyms of standard words."""

_CODE: Final = re.compile(r"`[^`\n]*`|\]\([^)]*\)|https?://\S+")


class Finding(NamedTuple):
    """A text that breaks a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.rule}: {self.text}"


def check_python(path: Path, source: str) -> Iterator[Finding]:
    """Yield the findings in a Python module: its docstrings, comments and string literals."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            text = statement.value.value
            if isinstance(text, str) and (found := FIRST_WORDS.match(text.lstrip())):
                yield Finding(path, statement.lineno, "first word", found[0])
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from _words(path, token.start[0], token.string)


def check_page(path: Path, source: str) -> Iterator[Finding]:
    """Yield the findings in a Markdown page, without its code blocks."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield from _words(path, number, line)


def check(path: Path) -> Iterator[Finding]:
    """Yield the findings of one file."""
    source = path.read_text(encoding="utf-8")
    yield from check_python(path, source) if path.suffix == ".py" else check_page(path, source)


def files(paths: list[Path]) -> Iterator[Path]:
    """Yield the Python modules and Markdown pages below `paths`, in order."""
    for path in paths:
        if path.is_file():
            yield path
        else:
            yield from sorted(
                file
                for file in path.rglob("*")
                if file.suffix in (".py", ".md")
                and not file.name.endswith(".zh.md")
                and not file.relative_to(ROOT).as_posix().startswith((".", "build"))
            )


def main(arguments: list[str]) -> int:
    """Print all findings below the given paths. Return 1 if there are any, else 0."""
    paths = [Path(argument).resolve() for argument in arguments] or [
        ROOT / name for name in (*CHECKED, *PAGES)
    ]
    findings = [finding for file in files(paths) for finding in check(file)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def _words(path: Path, line: int, text: str) -> Iterator[Finding]:
    for offset, part in enumerate(_CODE.sub("", text).splitlines()):
        for found in WORDS.finditer(part):
            yield Finding(path, line + offset, "word", found[0].lower())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
