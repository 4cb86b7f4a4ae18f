"""Puts the name of the instance before each line that a model prints.

Models share the server's streams, and `print` says nothing of who called it. Whoever runs a model's
code says so with `speak_as` or `speaking`; the server's command puts `NamedLines` in the place of
its streams. Without that nothing is changed.
"""

from __future__ import annotations

import bdb
import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _Speaker(threading.local):
    """Whose code this thread runs; empty if nobody's."""

    name = ""


_speaker = _Speaker()


def speak_as(name: str) -> None:
    """From now on this thread runs the code of `name`."""
    _speaker.name = name


@contextlib.contextmanager
def speaking(name: str) -> Iterator[None]:
    """For a while this thread runs the code of `name`."""
    before = _speaker.name
    _speaker.name = name
    try:
        yield
    finally:
        _speaker.name = before


class NamedLines:
    """A text stream that puts `[name] ` before the lines of those who speak. Any thread.

    Their lines are written whole, so that those of several threads do not mix; what is not a line
    yet is written by `flush`. Whoever has no name writes to `stream` as ever, and so does a thread
    that a debugger holds: its prompts and listings stay as they are. Whatever else a stream can do
    is done by `stream`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # The beginnings of lines, by thread and name; with what `flush` has written of them.
        self._begun: dict[tuple[int, str], _Line] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text`, as far as it is lines."""
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
        """Write what this thread has begun, too."""
        line = self._begun.get((threading.get_ident(), _speaker.name))
        if line is not None:
            self._stream.write(line.take())
        self._stream.flush()

    def finish(self) -> None:
        """Write what any thread has begun, each as a line."""
        while self._begun:
            _, line = self._begun.popitem()
            self._stream.write(f"{line.take()}\n")
        self._stream.flush()


class _Line:
    """A line that is not complete, and how much of it is written."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._waiting = ""
        self._is_shown = False  # the label, and what came before

    def add(self, text: str) -> str:
        """What is to be written now that `text` has come: whole lines."""
        *lines, rest = (self._waiting + text).split("\n")
        whole = ""
        for line in lines:
            whole += f"{'' if self._is_shown else self._label}{line}\n"
            self._is_shown = False
        self._waiting = rest
        return whole

    def take(self) -> str:
        """What is there of it, to be written though more may come."""
        if not self._waiting:
            return ""
        text = f"{'' if self._is_shown else self._label}{self._waiting}"
        self._waiting, self._is_shown = "", True
        return text

    @property
    def is_empty(self) -> bool:
        """True if the line has not begun."""
        return not self._waiting and not self._is_shown


def _is_debugged() -> bool:
    """Whether a debugger of the standard library's kind follows this thread."""
    return isinstance(getattr(sys.gettrace(), "__self__", None), bdb.Bdb)


@contextlib.contextmanager
def named_output() -> Iterator[None]:
    """Put names into what is written to sys.stdout and sys.stderr."""
    before = sys.stdout, sys.stderr
    named = NamedLines(sys.stdout), NamedLines(sys.stderr)
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in named)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in named:
            stream.finish()
