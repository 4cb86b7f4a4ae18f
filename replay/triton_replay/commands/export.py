"""`triton-replay export`: write a capture for perf_analyzer, `ge-runtime gears` or pytest."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from triton_replay.capture.files import Capture, read_capture
from triton_replay.commands.common import make_folder, print_message
from triton_replay.errors import FileUnwritable, ReplayError
from triton_replay.exporting import export_loads, write_pytest_case


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `export`."""
    add = parser.add_argument
    add("capture", metavar="CAPTURE", type=Path, help="the capture to export")
    add("--output", metavar="DIR", type=Path, required=True, help="folder for the files")
    add(
        "--rows",
        action="store_true",
        help="write each row of a batch as an entry, for models with a max_batch_size above 0",
    )
    add(
        "--pytest",
        action="store_true",
        help="write tests instead, which compare a server's responses with the recorded ones",
    )


def run(given: argparse.Namespace) -> int:
    """Run the command; return 0. Raise ReplayError."""
    capture = read_capture(given.capture)
    if capture.complaint:
        print_message(capture.complaint)
    if given.pytest:
        _write_tests(given, capture)
    else:
        _write_loads(given, capture)
    return 0


def _write_tests(given: argparse.Namespace, capture: Capture) -> None:
    count = sum(exchange.response is not None for exchange in capture.exchanges)
    if not count:
        raise ReplayError(f"{given.capture}: no responses to test")
    make_folder(given.output)
    try:
        write_pytest_case(capture.files, given.output)
    except OSError as error:
        raise FileUnwritable(given.output, error) from error
    print_message(f"{count} tests: pytest {given.output} --triton-server HOST:PORT")


def _write_loads(given: argparse.Namespace, capture: Capture) -> None:
    """Write MODEL.json and MODEL.intervals for each model."""
    loads, left_out = export_loads(capture.exchanges, rows=given.rows)
    if not loads:
        raise ReplayError(f"{given.capture}: no inference with exportable inputs")
    make_folder(given.output)
    try:
        for model, load in loads.items():
            path = given.output / f"{model}.json"
            path.write_text(json.dumps(load.document()), encoding="utf-8")
            lines = "".join(f"{interval}\n" for interval in load.intervals())
            (given.output / f"{model}.intervals").write_text(lines, encoding="utf-8")
            print_message(f"{path}: {len(load.entries)} entries from {len(load.times)} requests")
    except OSError as error:
        raise FileUnwritable(given.output, error) from error
    for reason, count in left_out.items():
        print_message(f"skipped: {count} {reason}")
