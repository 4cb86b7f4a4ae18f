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


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0. Raise ReplayError."""
    capture = read_capture(args.capture)
    if capture.complaint:
        print_message(capture.complaint)
    if args.pytest:
        _write_tests(args, capture)
    else:
        _write_loads(args, capture)
    return 0


def _write_tests(args: argparse.Namespace, capture: Capture) -> None:
    count = sum(exchange.response is not None for exchange in capture.exchanges)
    if not count:
        raise ReplayError(f"{args.capture}: no responses to test")
    make_folder(args.output)
    try:
        write_pytest_case(capture.files, args.output)
    except OSError as error:
        raise FileUnwritable(args.output, error) from error
    print_message(f"{count} tests: pytest {args.output} --triton-server HOST:PORT")


def _write_loads(args: argparse.Namespace, capture: Capture) -> None:
    """Write MODEL.json and MODEL.intervals for each model."""
    loads, left_out = export_loads(capture.exchanges, rows=args.rows)
    if not loads:
        raise ReplayError(f"{args.capture}: no inference with exportable inputs")
    make_folder(args.output)
    try:
        for model, load in loads.items():
            path = args.output / f"{model}.json"
            path.write_text(json.dumps(load.document()), encoding="utf-8")
            lines = "".join(f"{interval}\n" for interval in load.intervals())
            (args.output / f"{model}.intervals").write_text(lines, encoding="utf-8")
            print_message(f"{path}: {len(load.entries)} entries from {len(load.times)} requests")
    except OSError as error:
        raise FileUnwritable(args.output, error) from error
    for reason, count in left_out.items():
        print_message(f"skipped: {count} {reason}")
