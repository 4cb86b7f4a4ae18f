"""Puts the name of the instance before each line that a model prints.

Models share the server's stdout and stderr. Code that runs a model sets the name for its thread
with `speak_as` or `speaking`. The command `reference-server` replaces its streams by `NamedLines`;
without this, output is unchanged.
"""

from __future__ import annotations

import bdb
import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _Speaker(threading.local):
    """The name of the instance whose code this thread runs; empty for other code."""

    name = ""


_speaker = _Speaker()


def speak_as(name: str) -> None:
    """Set the name for the output of this thread."""
    _speaker.name = name


@contextlib.contextmanager
def speaking(name: str) -> Iterator[None]:
    """Set the name for the output of this thread within a `with` block."""
    before = _speaker.name
    _speaker.name = name
    try:
        yield
    finally:
        _speaker.name = before


class NamedLines:
    """A text stream that puts `[name] ` before the lines of threads with a name. Thread-safe.

    Only complete lines are written, so that the lines of several threads do not mix; `flush` writes
    partial lines. Output without a name is passed on unchanged. So is the output of a thread under
    a debugger, whose prompts and listings must not change. All other attributes are those of
    `stream`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # Partial lines by thread and name.
        self._begun: dict[tuple[int, str], _Line] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a stream
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the complete lines of `text`, and keep the rest."""
        name = _speaker.name
        if not name or _is_debugged():
            return self._stream.write(text)
        key = threading.get_ident(), name
        line = self._begun.get(key) or _Line(f"[{name}] ")
        whole = line.add(text)
        if line.is_empty:
            self._begun.pop(key, None)
        else:
            self._begun[key] = line
        if whole:
            self._stream.write(whole)
            self._stream.flush()
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write each of `lines`."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write the partial line of this thread, too."""
        line = self._begun.get((threading.get_ident(), _speaker.name))
        if line is not None:
            self._stream.write(line.take())
        self._stream.flush()

    def finish(self) -> None:
        """Write the partial lines of all threads, and end them."""
        while self._begun:
            _, line = self._begun.popitem()
            self._stream.write(f"{line.take()}\n")
        self._stream.flush()


class _Line:
    """A partial line, and whether its start is already written."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._waiting = ""
        self._is_shown = False  # True once the label and the start of the line are written

    def add(self, text: str) -> str:
        """Add `text`; return the complete lines to write."""
        *lines, rest = (self._waiting + text).split("\n")
        whole = ""
        for line in lines:
            whole += f"{'' if self._is_shown else self._label}{line}\n"
            self._is_shown = False
        self._waiting = rest
        return whole

    def take(self) -> str:
        """Return the unwritten part of the line, to be written before its end is known."""
        if not self._waiting:
            return ""
        text = f"{'' if self._is_shown else self._label}{self._waiting}"
        self._waiting, self._is_shown = "", True
        return text

    @property
    def is_empty(self) -> bool:
        """True if the line has no text, written or unwritten."""
        return not self._waiting and not self._is_shown


def _is_debugged() -> bool:
    """Return True if a debugger based on `bdb` traces this thread."""
    return isinstance(getattr(sys.gettrace(), "__self__", None), bdb.Bdb)


@contextlib.contextmanager
def named_output() -> Iterator[None]:
    """Put names before the lines written to sys.stdout and sys.stderr within a `with` block."""
    before = sys.stdout, sys.stderr
    named = NamedLines(sys.stdout), NamedLines(sys.stderr)
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in named)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in named:
            stream.finish()
