"""The code blocks of the pages that users read, and the sessions with outputs among them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from support.servers import ROOT

# Translations have the same blocks and links: tests/stack/test_translations.py.
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").glob("*.md") if not page.match("*.zh.md")),
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TITLE = re.compile(r"^(#+) (.*)$", re.M)
_SOURCE = re.compile(r"# ((?:\w+/)+\w+\.\w+)\n")
_PROMPT = "$ "
# Patterns of texts that differ in each run, and their replacements.
_UNSTABLE = (
    (re.compile(r'("ns":|"last_inference":)[1-9]\d*'), r"\1N"),
    (re.compile(r'("(?:inference_|execution_)?count":)[1-9]\d*'), r"\1N"),
    (re.compile(r"^[IWE]\d{4} [\d:.]+ \d+ (\w+\.py):\d+", re.M), r"\1"),
    (re.compile(r"(\d\.\d{4})\d+"), r"\1"),  # the last digits depend on the processor
    (re.compile(r"(0\.0\.0\.0|127\.0\.0\.1):\d+"), "ADDRESS"),
    # The number of earlier requests from other pages.
    (re.compile(r"(nv_inference_request_success\{.*\}) [1-9]\d*"), r"\1"),
    (re.compile(r"^\+[-+]+\+$", re.M), ""),  # a table is as wide as its longest name
    # Free memory differs, and so do limits, e.g. in containers.
    (re.compile(r"^This machine, in bytes\n(?:.+\n?)+", re.M), ""),
)


@dataclass(frozen=True)
class Block:
    """A code block; `language` is its info string, `line` the number of its first line."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def source(self) -> str:
        """Return the file of which the block declares to be an excerpt, or ""."""
        named = _SOURCE.match(self.text)
        return named[1] if named else ""


def blocks(language: str | None = None) -> list[Block]:
    """Return the blocks of all pages in order, optionally only those with this info string."""
    found: list[Block] = []
    for page in PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            found.append(Block(page, line, match[1], match[2]))
    return [block for block in found if language in (None, block.language)]


def sessions(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a block, each with the output that the page shows after it."""
    found: list[tuple[str, str]] = []
    lines = block.text.splitlines()
    while lines:
        command = lines.pop(0)
        assert command.startswith(_PROMPT), f"{block}: {command!r} is output of no command"
        while _is_open(command):
            assert lines, f"{block}: {command!r} has no end"
            command += f"\n{lines.pop(0)}"
        shown: list[str] = []
        while lines and not lines[0].startswith(_PROMPT):
            shown.append(lines.pop(0))
        found.append((command.removeprefix(_PROMPT), "\n".join(shown)))
    return found


def commands(block: Block) -> list[str]:
    """Return the commands of a block, without prompts; continued lines are joined."""
    joined = block.text.replace("\\\n", " ")
    return [line.removeprefix(_PROMPT) for line in joined.splitlines()]


def links(page: Path) -> list[str]:
    """Return the targets of a page's links in this tree: a relative path, an anchor, or both."""
    found = _LINK.findall(_BLOCK.sub("", page.read_text()))
    return [link for link in found if "://" not in link]


def anchors(page: Path, level: int | None = None) -> list[str]:
    """Return the anchors of a page's headings as on GitHub; only those of `level` if given."""
    titles = _TITLE.findall(_BLOCK.sub("", page.read_text()))
    return [
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for marks, title in titles
        if level in (None, len(marks))
    ]


def _is_open(command: str) -> bool:
    """Return whether a quotation or a backslash continues the command on the next line."""
    try:
        shlex.split(command)
    except ValueError:
        return True
    return False


def shows(shown: str, printed: str) -> bool:
    """Return whether a page shows the printed text: `...` matches any text, times may differ.

    White space is ignored, because pages fold long lines.
    """
    first, *others = [_stable(part) for part in shown.split("...")]
    rest = _stable(printed)
    if not others:
        return rest == first
    if not rest.startswith(first):
        return False
    rest = rest[len(first) :]
    for part in others[:-1]:
        place = rest.find(part)
        if place < 0:
            return False
        rest = rest[place + len(part) :]
    return rest.endswith(others[-1])


def _stable(text: str) -> str:
    for pattern, stand_in in _UNSTABLE:
        text = pattern.sub(stand_in, text)
    return re.sub(r"\s", "", text)
