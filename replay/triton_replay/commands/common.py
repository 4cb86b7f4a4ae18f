"""What commands share: the event loop, the first record of a capture, lines for the terminal."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from triton_replay.addresses import Address
from triton_replay.capture.records import Opening
from triton_replay.errors import FileUnwritable, ReplayError


def run_loop(task: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on the fastest event loop there is. Signals are handled as before then."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        import uvloop
    except ImportError:  # Windows has none
        asyncio.run(task)
    else:
        uvloop.run(task)
    finally:
        # uvloop's handlers outlive its loop, and forks have them: `Process.terminate` would not end
        # a child of this process.
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: one of a C library


def opening(server: Address, settings: Mapping[str, object]) -> Opening:
    """The first record of a capture that begins now."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    return Opening(str(server), now, package_version(), settings)


def package_version() -> str:
    """Of triton-replay."""
    try:
        return version("triton-replay")
    except PackageNotFoundError:
        return "0 (not installed)"


def print_result(text: str) -> None:
    """Print a result. Raises FileUnwritable if it cannot be; a reader that left has read enough."""
    try:
        print(text, flush=True)
    except OSError as error:
        # What is still buffered would fail once more at the interpreter's end, with a code of its.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise FileUnwritable("standard output", error) from error


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there. Raises FileUnwritable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileUnwritable(path, error) from error


def parse_header(text: str, option: str) -> tuple[str, str]:
    """Read `NAME:VALUE`. Raises ReplayError, which names `option`."""
    name, separator, value = text.partition(":")
    if not separator or not name.strip() or "\n" in text or "\r" in text:
        raise ReplayError(f"{option}: found {text!r}, expected NAME:VALUE")
    return name.strip(), value.strip()


def tell(line: str) -> None:
    """Say something that is no result."""
    print(line, file=sys.stderr, flush=True)
