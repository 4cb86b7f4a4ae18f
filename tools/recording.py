"""Record commands in terminals, and draw them as an animated SVG without scripts."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from html import escape
from pathlib import Path

_COLUMNS = 100
_LIMIT_S = 60
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_PROMPTS = ("$ ", "(Pdb) ")
#: Limits of the length of shown pauses, and the duration of the last screen, in seconds.
_SHORTEST_S, _LONGEST_S, _END_S = 0.15, 1.5, 8
_LINE, _SIZE, _WIDTH = 16, 13, 7.83  # pixels: height of a line, font size, width of a character
_STYLE = """
.body { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
text { fill: #d7dae0; white-space: pre } .typed { fill: #7fd4a3 } .title { fill: #a3a8b3 }
g, .cover { animation-timing-function: step-end; animation-iteration-count: infinite }
@media (prefers-reduced-motion: reduce) { g, .cover { animation: none !important } }
"""


class Terminal:
    """A shell in a terminal whose output is recorded.

    Args:
        title: The text above the terminal in the picture.
        rows: The visible lines.
        folder: The working directory.
        environment: Variables of the shell.
    """

    def __init__(self, title: str, rows: int, folder: Path, environment: Mapping[str, str]) -> None:
        self.title, self.rows, self._folder = title, rows, folder
        self._chunks: list[tuple[float, str]] = []
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, _COLUMNS, 0, 0))
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={
                **os.environ,
                **environment,
                "PS1": "$ ",
                "TERM": "dumb",
                "COLUMNS": str(_COLUMNS),
            },
            preexec_fn=_own_terminal,
        )
        os.close(slave)
        self.wait("$ ")

    def type(self, line: str, *, until: str = "$ ") -> None:
        """Type a line, and wait until the output after it has `until`."""
        os.write(self._master, f"{line}\n".encode())
        self.wait("\n")
        self.wait(until)

    def wait(self, text: str) -> None:
        """Read until the output since the last wait has `text`; the rest remains unread.

        Raises:
            TimeoutError: The text does not appear within a minute, or the shell ends.
        """
        seen, deadline = "", time.monotonic() + _LIMIT_S
        while text not in seen:
            ready = select.select([self._master], [], [], max(0, deadline - time.monotonic()))[0]
            # One byte at a time, so that nothing after the text is consumed.
            read = os.read(self._master, 1) if ready else b""
            if not read:
                raise TimeoutError(f"{self.title}: found {seen!r}; expected {text!r}")
            seen += read.decode(errors="replace")
            self._chunks.append((time.monotonic(), seen[-1]))

    def close(self) -> None:
        """End the shell and its processes."""
        os.killpg(self._shell.pid, signal.SIGHUP)
        self._shell.wait()
        os.close(self._master)

    def lines(self) -> list[tuple[float, str]]:
        """Return the lines without empty prompts, each with the time of its last character.

        Paths are relative to the shell's folder.
        """
        found, at, text = [], 0.0, ""
        for when, character in (*self._chunks, (0.0, "\n")):
            if character == "\n":
                found.append((at, _ESCAPES.sub("", text).replace(f"{self._folder}/", "")))
                text = ""
            else:
                at, text = when, text + character
        return [(at, text) for at, text in found if text not in ("", *_PROMPTS, "$")]


def _own_terminal() -> None:
    os.setsid()
    ioctl(0, termios.TIOCSCTTY, 0)


@dataclass(frozen=True)
class _Shown:
    at: float  # seconds since the start of the animation
    text: str


def _shortened(terminals: Sequence[Terminal]) -> tuple[list[list[_Shown]], float]:
    """Return the lines of each terminal with shortened pauses, and the length of the animation."""
    lines = sorted(
        ((at, number, text) for number, each in enumerate(terminals) for at, text in each.lines()),
        key=lambda line: line[0],
    )
    shown: list[list[_Shown]] = [[] for _ in terminals]
    now, before = 0.0, lines[0][0]
    for at, number, text in lines:
        # Lines printed together appear together; a command is shown before its output.
        pause = at - before
        if pause > 0.02 or text.startswith(_PROMPTS):
            now += min(max(pause, _SHORTEST_S), _LONGEST_S) + text.startswith(_PROMPTS)
        before = at
        shown[number].append(_Shown(now, text))
    return shown, now + _END_S


def draw(terminals: Sequence[Terminal], title: str) -> str:
    """Return the SVG; without animations it shows the last screen."""
    panes, length = _shortened(terminals)
    width = round(_COLUMNS * _WIDTH) + 20
    top, parts, rules = 0, [], []
    for number, (terminal, lines) in enumerate(zip(terminals, panes, strict=True)):
        height = terminal.rows * _LINE
        parts += [
            f'<text class="title" x="10" y="{top + 17}">{escape(terminal.title)}</text>',
            f'<rect y="{top + 26}" width="100%" height="{height + 8}" fill="#16181d"/>'
            f'<svg y="{top + 30}" width="{width}" height="{height}"><g class="s{number}">',
            *(_text(row, line.text) for row, line in enumerate(lines)),
            f'<rect class="cover c{number}" width="100%" height="{len(lines) * _LINE}" '
            f'fill="#16181d"/></g></svg>',
        ]
        rules += _frames(number, lines, terminal.rows, length)
        top += 34 + height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 4}" '
        f'width="{width}" height="{top + 4}" role="img" class="body"><title>{escape(title)}</title>'
        f"<style>{_STYLE}{''.join(rules)}</style>"
        f'<rect width="100%" height="100%" rx="6" fill="#2a2e37"/>{"".join(parts)}</svg>\n'
    )


def _text(row: int, text: str) -> str:
    cut = text if len(text) <= _COLUMNS else f"{text[: _COLUMNS - 1]}…"
    typed = ' class="typed"' if text.startswith(_PROMPTS) else ""
    return (
        f'<text{typed} x="10" y="{row * _LINE + _SIZE - 1}" xml:space="preserve">'
        f"{escape(cut, quote=False)}</text>"
    )


def _frames(number: int, lines: Sequence[_Shown], rows: int, length: float) -> list[str]:
    """Return the rules that scroll a terminal's lines, and uncover them."""
    scroll, cover = ["0%{transform:none}"], ["0%{transform:none}"]
    moved = 0
    for count, line in enumerate(lines, 1):
        if count < len(lines) and lines[count].at == line.at:
            continue  # printed together with the next line
        percent = f"{100 * line.at / length:.2f}%"
        moved = max(0, count - rows) * _LINE
        scroll.append(f"{percent}{{transform:translateY(-{moved}px)}}")
        cover.append(f"{percent}{{transform:translateY({count * _LINE}px)}}")
    uncovered = len(lines) * _LINE
    return [
        f"@keyframes s{number}{{{''.join(scroll)}}}@keyframes c{number}{{{''.join(cover)}}}",
        f".s{number}{{transform:translateY(-{moved}px);animation:s{number} {length:.1f}s}}",
        f".c{number}{{transform:translateY({uncovered}px);animation:c{number} {length:.1f}s}}",
    ]
