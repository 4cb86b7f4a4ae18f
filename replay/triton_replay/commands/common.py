"""Functions shared by commands: event loop, clock, opening record, output."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from triton_replay.addresses import Address
from triton_replay.capture.records import Opening
from triton_replay.errors import FileUnwritable, ReplayError
from triton_replay.reporting.hdr import hdr_lines

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([KMGT])?(i)?B?")
# Also characters that change the direction of text, and those that XML does not allow.
_CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ufffe\\uffff\\ud800-\\udfff]"
)


def run_loop(task: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on uvloop if it is installed, and restore the signal handlers."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        import uvloop
    except ImportError:  # Windows has none
        asyncio.run(task)
    else:
        uvloop.run(task)
    finally:
        # uvloop's handlers outlive its loop and are inherited by forks, where they would make
        # `Process.terminate` ineffective.
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: set by a C library


def opening(server: Address, settings: Mapping[str, object]) -> Opening:
    """Return the first record of a capture that starts now."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    return Opening(str(server), now, package_version(), settings)


def package_version() -> str:
    """Return the version of triton-replay."""
    try:
        return version("triton-replay")
    except PackageNotFoundError:
        return "0 (not installed)"


def printable(text: str) -> str:
    """Escape control characters except line ends and tabs: captures could control the terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def print_result(text: str) -> None:
    """Print a result to standard output. A closed pipe is not an error.

    Raises:
        FileUnwritable: The output cannot be written.
    """
    try:
        print(printable(text), flush=True)
    except OSError as error:
        # Otherwise the rest of the buffer would fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise FileUnwritable("standard output", error) from error


def make_folder(path: Path) -> None:
    """Create a folder unless it exists. Raise FileUnwritable if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileUnwritable(path, error) from error


def write_file(path: Path, text: str) -> None:
    """Write a text file, with control characters escaped. Raise FileUnwritable if that fails."""
    try:
        path.write_text(printable(text), encoding="utf-8")
    except OSError as error:
        raise FileUnwritable(path, error) from error


def write_hdr(path: Path, times: Sequence[int]) -> None:
    """Write latencies in nanoseconds in HdrHistogram's format; no file without latencies.

    Raises:
        FileUnwritable: The file cannot be written.
    """
    if len(times):
        make_folder(path.parent)
        write_file(path, "\n".join([*hdr_lines(times), ""]))


def parse_header(text: str, option: str) -> tuple[str, str]:
    """Parse `NAME:VALUE`. Raise ReplayError, with `option`, if it is invalid."""
    name, separator, value = text.partition(":")
    if not separator or not name.strip() or re.search("[\r\n\u0100-\U0010ffff]", text):
        raise ReplayError(f"{option}: found {text!r}, expected NAME:VALUE")
    return name.strip(), value.strip()


def parse_size(text: str, option: str) -> int:
    """Parse a number of bytes, such as `1GiB`. Raise ReplayError, with `option`, if invalid."""
    found = _SIZE.fullmatch(text.strip())
    size = 0
    if found is not None:
        size = round(
            float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2] or " ")
        )
    if not 0 < size < 2**63:
        raise ReplayError(f"{option}: found {text!r}, expected a size such as 500MB or 1GiB")
    return size


def print_message(line: str) -> None:
    """Print a message to standard error."""
    print(printable(line), file=sys.stderr, flush=True)


# -- the monotonic clock of recordings and replays


def clock_from_now() -> Callable[[], int]:
    """Return a monotonic clock that starts at 0 now and counts nanoseconds."""
    start = time.monotonic_ns()
    return lambda: time.monotonic_ns() - start
