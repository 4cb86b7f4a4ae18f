"""Log lines in Triton's format, the start-up table, and output that models print.

Loggers are named `reference_server.*`. Models log through `pb_utils.Logger` to
`reference_server.models`. Nothing is configured before `configure` is called.
"""

from __future__ import annotations

import bdb
import contextlib
import io
import json
import logging
import os
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from reference_server.core import forks
from reference_server.options import LogOptions

ROOT = "reference_server"
_MODELS = f"{ROOT}.models"
VERBOSE = logging.DEBUG
# As in Triton, verbose lines have the letter I.
_LETTERS = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E"}
_COLUMNS = ("Model", "Version", "Status")
#: The largest width of the status column without a terminal, and the smallest in a terminal.
_WIDEST = 100
_NARROWEST = 30
# The width of the borders of three columns.
_FRAME = len("|  |  |  |")


class TritonFormatter(logging.Formatter):
    """`I1120 16:04:19.598552 23690 server.py:5] "text"`, time in UTC, text quoted as JSON.

    With `iso8601`: `2026-11-20T16:04:20Z I 23690 server.py:5] "text"`. Lines of models have the
    model's name, such as `bert/1/model.py:5`, because all models have files of this name. A record
    with the attribute `verbatim` is printed without quotes, so that tables stay readable.
    """

    def __init__(self, *, iso8601: bool) -> None:
        super().__init__()
        self._iso8601 = iso8601

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or a verbatim block after its head."""
        letter = _LETTERS.get(record.levelno, "E")
        moment = time.gmtime(record.created)
        if self._iso8601:
            head = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', moment)} {letter}"
        else:
            micros = int(record.created % 1 * 1_000_000)
            head = f"{letter}{time.strftime('%m%d %H:%M:%S', moment)}.{micros:06d}"
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        if getattr(record, "verbatim", False):
            text = f"\n{text}"
        else:
            text = f" {json.dumps(text, ensure_ascii=False)}"
        file = record.filename
        if record.name == _MODELS:
            file = "/".join(Path(record.pathname).parts[-3:])
        return f"{head} {record.process} {file}:{record.lineno}]{text}"


class LogTail(logging.Handler):
    """Keeps the last log lines between `open` and `close`, without verbose lines.

    Lines are numbered from 1. Thread-safe.
    """

    _MAX_LINES = 200
    _MAX_CHARACTERS = 2000

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[tuple[int, str]] = deque(maxlen=self._MAX_LINES)
        self._count = 0

    def open(self) -> None:
        """Start keeping lines, with the format and the levels of the log."""
        logger = logging.getLogger(ROOT)
        self.setFormatter(TritonFormatter(iso8601=False))
        for handler in logger.handlers:
            self.setFormatter(handler.formatter)
            self.filters = list(handler.filters)
        logger.addHandler(self)

    def close(self) -> None:
        """Stop keeping lines. May be called twice."""
        logging.getLogger(ROOT).removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if len(line) > self._MAX_CHARACTERS:
            line = f"{line[: self._MAX_CHARACTERS]} ..."
        self._count += 1
        self._lines.append((self._count, line))

    def after(self, number: int) -> list[tuple[int, str]]:
        """Return the kept lines after `number`; all of them if `number` is unknown.

        So a reader with a number of an earlier process receives the lines of the new process.
        """
        self.acquire()
        try:
            known = number if number <= self._count else 0
            return [line for line in self._lines if line[0] > known]
        finally:
            self.release()


class _LogFile(logging.FileHandler):
    """The log file. A write error is reported on stderr once, and not for each line."""

    _has_reported = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_reported:
            self._has_reported = True
            text = f"log lines are lost: --log-file={self.baseFilename}: {error.strerror}"
            print(text, file=sys.stderr, flush=True)


class _TwoStreams(logging.StreamHandler):  # type: ignore[type-arg]  # a subscript needs 3.11
    """Writes INFO and verbose lines to stdout, and other lines to stderr."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._stdout = sys.stdout
        if isinstance(self._stdout, io.TextIOWrapper):
            # As on stderr, bytes of clients that are not UTF-8 are escaped.
            self._stdout.reconfigure(errors="backslashreplace")
        self._stderr = sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = self._stdout if record.levelno <= logging.INFO else self._stderr
        super().emit(record)


def info_stream(*, splits: bool) -> TextIO:
    """Return the stream of INFO lines without a log file. `splits` as for `configure`."""
    return sys.stdout if splits else sys.stderr


def configure(options: LogOptions, *, splits: bool = False) -> None:
    """Send the server's records to stderr, or to the file in `options`.

    Must be called once, at start. Only loggers under `reference_server` are changed.

    Args:
        options: Levels, format and file.
        splits: Without a file, send INFO and verbose records to stdout.
    """
    handler: logging.Handler
    if options.file:
        # As on stderr, bytes of clients that are not UTF-8 are escaped.
        handler = _LogFile(Path(options.file), encoding="utf-8", errors="backslashreplace")
    elif splits:
        handler = _TwoStreams()
    else:
        handler = logging.StreamHandler(sys.stderr)
    # A model's child process writes to the same stream, so it must not inherit a partial line.
    forks.hold_for_forks(handler.acquire, handler.release)
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    apply(options)


def apply(options: LogOptions) -> None:
    """Change the levels and the format, but not the destination. Thread-safe."""
    shown = {
        logging.DEBUG: options.verbose_level >= 1,
        logging.INFO: options.info,
        logging.WARNING: options.warning,
        logging.ERROR: options.error,
    }
    logger = logging.getLogger(ROOT)
    for handler in logger.handlers:
        handler.setFormatter(TritonFormatter(iso8601=options.iso8601))
        handler.filters = [lambda record: shown.get(record.levelno, True)]
    logger.setLevel(VERBOSE if options.verbose_level >= 1 else logging.INFO)


def model_table(rows: Sequence[tuple[str, str, str]], width: int | None = None) -> str:
    """Return a table of models, versions and statuses. Long statuses are wrapped.

    Args:
        rows: Triples of model, version and status.
        width: The width of the terminal in characters; None: no terminal. Without a terminal,
            words such as paths are not broken.
    """
    names = [max(len(row[column]) for row in (_COLUMNS, *rows)) for column in range(2)]
    widest = _WIDEST if width is None else max(_NARROWEST, width - sum(names) - _FRAME)
    lines: list[tuple[str, str, str]] = []
    for model, version, status in rows:
        first, *rest = _wrapped(status, widest, breaks_words=width is not None)
        lines.append((model, version, first))
        lines.extend(("", "", line) for line in rest)
    widths = [*names, max(len(line[2]) for line in (_COLUMNS, *lines))]
    rule = "+" + "+".join("-" * (cell + 2) for cell in widths) + "+"
    drawn = [rule, _row(_COLUMNS, widths), rule, *(_row(line, widths) for line in lines), rule]
    return "\n".join(drawn)


def terminal_width(stream: TextIO) -> int | None:
    """Return the number of columns of the terminal that `stream` writes to; None: no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # closed, or without a descriptor
        return None


def _row(cells: tuple[str, str, str], widths: Sequence[int]) -> str:
    shown = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(shown) + " |"


def _wrapped(text: str, widest: int, *, breaks_words: bool) -> list[str]:
    """Return the wrapped lines of `text`, with continuation lines indented."""
    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
        lines += textwrap.wrap(
            line,
            widest,
            subsequent_indent=indent,
            break_long_words=breaks_words,
            break_on_hyphens=False,
        )
    return lines or [""]


# -- output that models print

# Models share the server's stdout and stderr. Code that runs a model sets the name for its thread
# with `speak_as` or `speaking`. The command `reference-server` replaces its streams by
# `NamedLines`, which put the name before each line; without this, output is unchanged.


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
    partial lines. Output without a name is passed on unchanged, and so is output of a thread under
    a debugger, so that prompts and listings do not change. All other attributes are those of
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
