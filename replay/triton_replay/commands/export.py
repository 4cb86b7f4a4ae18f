"""`triton-replay export`: a capture for perf_analyzer and `ge-runtime gears`, or as tests."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from triton_replay.capture.reader import Capture, read_capture
from triton_replay.commands.common import make_folder, tell
from triton_replay.errors import FileUnwritable, ReplayError
from triton_replay.exporting.perf_analyzer import export_loads
from triton_replay.exporting.pytest_case import write_pytest_case


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `export`."""
    add = parser.add_argument
    add("capture", metavar="CAPTURE", type=Path)
    add("--output", metavar="DIR", type=Path, required=True, help="gets the files")
    add(
        "--rows",
        action="store_true",
        help="each row of a batch is an entry: for models with a max_batch_size above 0",
    )
    add(
        "--pytest",
        action="store_true",
        help="write tests instead: a server must answer as it was recorded",
    )


def run(given: argparse.Namespace) -> int:
    """Write the files. Raises ReplayError."""
    capture = read_capture(given.capture)
    if capture.complaint:
        tell(capture.complaint)
    if given.pytest:
        _write_tests(given, capture)
    else:
        _write_loads(given, capture)
    return 0


def _write_tests(given: argparse.Namespace, capture: Capture) -> None:
    count = sum(exchange.response is not None for exchange in capture.exchanges)
    if not count:
        raise ReplayError(f"{given.capture}: holds no answers that tests could expect")
    make_folder(given.output)
    try:
        write_pytest_case(given.capture, given.output)
    except OSError as error:
        raise FileUnwritable(given.output, error) from error
    tell(f"{count} tests: pytest {given.output} --triton-server HOST:PORT")


def _write_loads(given: argparse.Namespace, capture: Capture) -> None:
    """MODEL.json and MODEL.intervals."""
    loads, left_out = export_loads(capture.exchanges, rows=given.rows)
    if not loads:
        raise ReplayError(f"{given.capture}: holds no inference whose inputs can be exported")
    make_folder(given.output)
    try:
        for model, load in loads.items():
            path = given.output / f"{model}.json"
            path.write_text(json.dumps(load.document()), encoding="utf-8")
            lines = "".join(f"{interval}\n" for interval in load.intervals())
            (given.output / f"{model}.intervals").write_text(lines, encoding="utf-8")
            tell(f"{path}: {len(load.entries)} entries of {len(load.times)} requests")
    except OSError as error:
        raise FileUnwritable(given.output, error) from error
    for reason, count in left_out.items():
        tell(f"left out: {count} {reason}")
