"""Functions shared by commands: event loop, clock, opening record, output."""

from __future__ import annotations

import argparse
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
from typing import Any, Final

from triton_replay.addresses import Address
from triton_replay.capture.records import Opening
from triton_replay.capture.renaming import Names, parse_names
from triton_replay.comparing.tolerances import (
    DEFAULT,
    HALF,
    Tolerances,
    describe,
    parse_tolerances,
)
from triton_replay.errors import FileUnwritable, ReplayError
from triton_replay.reporting.hdr import hdr_lines
from triton_replay.wire.bodies import Headers

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([kKMGT])?(i)?B?")
# Control characters, characters that change the text direction, and characters invalid in XML.
_CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ufffe\\uffff\\ud800-\\udfff]"
)


def run_loop(task: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on uvloop if it is installed, and restore the signal handlers."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        import uvloop
    except ImportError:  # uvloop does not support Windows
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
    """Write latencies in nanoseconds in HdrHistogram's format; if there are none, write no file.

    Raises:
        FileUnwritable: The file cannot be written.
    """
    if len(times):
        make_folder(path.parent)
        write_file(path, "\n".join([*hdr_lines(times), ""]))


def parse_header(text: str, option: str) -> tuple[str, str]:
    """Parse `NAME:VALUE`. Raise a ReplayError that names `option` if the text is invalid."""
    name, separator, value = text.partition(":")
    if not separator or not name.strip() or re.search("[\r\n\u0100-\U0010ffff]", text):
        raise ReplayError(f"{option}: found {text!r}, expected NAME:VALUE")
    return name.strip(), value.strip()


def check_timeout(seconds: float) -> None:
    """Raise ReplayError unless the value of `--timeout` is a number above 0."""
    if not seconds > 0:
        raise ReplayError(f"--timeout: found {seconds:g}, expected seconds above 0")


def add_headers(add: Callable[..., Any], timeout: float) -> None:
    """Add the options for sending requests again. `add` is a parser's `add_argument`."""
    header_help = "header to send, e.g. instead of a redacted Authorization; repeatable"
    add("--header", metavar="NAME:VALUE", action="append", default=[], help=header_help)
    timeout_help = "time limit of a request; default: %(default)g"
    add("--timeout", metavar="SECONDS", type=float, default=timeout, help=timeout_help)


def headers_of(args: argparse.Namespace) -> Headers:
    """Return the headers in the options of `add_headers`, and check `--timeout`.

    Raises:
        ReplayError: An option is invalid.
    """
    check_timeout(args.timeout)
    return tuple(parse_header(text, "--header") for text in args.header)


def parse_size(text: str, option: str) -> int:
    """Parse a size such as `1GiB`. Raise a ReplayError that names `option` if it is invalid."""
    found = _SIZE.fullmatch(text.strip())
    size = 0
    if found is not None:
        power = " KMGT".index((found[2] or " ").upper())
        size = round(float(found[1]) * (1024 if found[3] else 1000) ** power)
    if not 0 < size < 2**63:
        raise ReplayError(f"{option}: found {text!r}, expected a size such as 500MB or 1GiB")
    return size


def print_message(line: str) -> None:
    """Print a message to standard error."""
    print(printable(line), file=sys.stderr, flush=True)


# -- options for comparisons, shared by `compare`, `ab`, `replay` and exported pytest tests


NAME_OPTIONS: Final = (
    ("map-model", "A=B", "name of a model of A on the server B"),
    ("map-version", "[MODEL:]A=B", "version of a model of A on the server B"),
    ("map-output", "[MODEL/]A=B", "name of an output of A on the server B"),
)
"""Name, form and help of options for names that differ between the servers."""
RULE_OPTIONS: Final = (
    (
        "tolerance",
        "[[MODEL/]OUTPUT:]KEY=NUMBER,...",
        "allowed difference of an output, with the keys abs, rel, scale, ulp, cosine, topk and "
        f"json; default: {describe(DEFAULT)} for FP32 and FP64, {describe(HALF)} for FP16 and "
        "BF16",
    ),
    (
        "ignore",
        "FIELD,...",
        "response fields that are not compared, such as id,parameters.*_ms,outputs.y",
    ),
    *NAME_OPTIONS,
)
"""Name, form and help of all options of comparisons."""


def add_rules(add: Callable[..., Any], options: Sequence[tuple[str, str, str]]) -> None:
    """Add repeatable options with `add`, e.g. a parser's `add_argument`."""
    for name, form, text in options:
        add(f"--{name}", metavar=form, action="append", default=[], help=f"{text}; repeatable")


def names_of(args: argparse.Namespace) -> Names:
    """Return the names in NAME_OPTIONS. Raise ReplayError if a value is invalid."""
    return parse_names(args.map_model, args.map_version, args.map_output)


def rules_of(args: argparse.Namespace) -> Tolerances:
    """Return the rules in RULE_OPTIONS. Raise ReplayError if a value is invalid."""
    return parse_tolerances(args.tolerance, args.ignore, names_of(args))


# -- the monotonic clock of recordings and replays


def clock_from_now() -> Callable[[], int]:
    """Return a monotonic clock that starts at 0 now and counts nanoseconds."""
    start = time.monotonic_ns()
    return lambda: time.monotonic_ns() - start
