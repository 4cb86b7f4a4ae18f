"""`triton-replay compare`: compare the responses and latencies of two captures."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from triton_replay.capture.files import Capture, CaptureWriter, read_capture
from triton_replay.capture.records import Closing, Record
from triton_replay.commands.common import (
    RULE_OPTIONS,
    add_rules,
    make_folder,
    print_message,
    print_result,
    rules_of,
    write_file,
    write_hdr,
)
from triton_replay.commands.filtering import add_filter_options, filter_of
from triton_replay.comparing.comparison import Comparison, compare_captures
from triton_replay.errors import CaptureIncomplete
from triton_replay.reporting.page import comparison_page
from triton_replay.reporting.review import Review, junit, markdown, review_of_comparison
from triton_replay.reporting.table import comparison_document, comparison_lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `compare`."""
    add = parser.add_argument
    add("a", metavar="A", type=Path, help="a capture")
    add("b", metavar="B", type=Path, help="a replay of A, or another replay of the capture of A")
    add_rules(add, RULE_OPTIONS)
    add(
        "--learn",
        metavar="CAPTURE",
        type=Path,
        help="a second replay to A's server: what differs between A and this capture is ignored",
    )
    add("--json", action="store_true", help="print JSON instead of the table")
    add("--html", metavar="FILE", type=Path, help="also write an HTML page with plots")
    hdr_help = "write latencies to DIR, as MODEL.a.hgrm and MODEL.b.hgrm of HdrHistogram"
    add("--hdr", metavar="DIR", type=Path, help=hdr_help)
    add_review_options(add)
    add(
        "--smallest",
        metavar="DIR",
        type=Path,
        help="write the smallest request of each group to DIR, as a capture for replay, with the "
        "requests that it depends on, such as earlier requests of its sequence",
    )
    add_filter_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 if no response differs, otherwise 1.

    Raises:
        ReplayError: A capture cannot be read, or the captures do not match.
        CaptureIncomplete: No response differs, but one capture lacks requests of the other.
    """
    rules = rules_of(args)
    a, b = filter_of(args).apply_to_both(read_capture(args.a), read_capture(args.b))
    again = read_capture(args.learn) if args.learn else None
    for capture in filter(None, (a, b, again)):
        if capture.complaint:
            print_message(capture.complaint)
    comparison = compare_captures(a, b, rules, again)
    if args.json:
        print_result(json.dumps(comparison_document(comparison), indent=2))
    else:
        print_result("\n".join(comparison_lines(comparison)))
    if args.html is not None:
        write_file(args.html, comparison_page(comparison))
        print_message(f"page: {args.html}")
    if args.hdr is not None:
        for times in comparison.times:
            name = quote(times.model, safe="")
            write_hdr(args.hdr / f"{name}.a.hgrm", times.a)
            write_hdr(args.hdr / f"{name}.b.hgrm", times.b)
    write_review(args, review_of_comparison(comparison))
    if args.smallest is not None:
        _write_smallest(comparison, args.smallest)
    if comparison.differing:
        return 1
    for capture, other, lost in ((a, b, comparison.only_b), (b, a, comparison.only_a)):
        if lost:
            raise CaptureIncomplete(
                f"{capture.name}: lacks {lost} of the {len(other.exchanges)} requests in "
                f"{other.name}, which were not compared"
            )
    return 0


def add_review_options(add: Callable[..., Any]) -> None:
    """Add the options `--markdown` and `--junit` with a parser's `add_argument`."""
    add("--markdown", metavar="FILE", type=Path, help="write a comment for a pull request")
    add("--junit", metavar="FILE", type=Path, help="write the verdict as JUnit's XML")


def write_review(args: argparse.Namespace, review: Review) -> None:
    """Write the files of `--markdown` and `--junit`. Raise FileUnwritable if that fails."""
    if args.markdown is not None:
        write_file(args.markdown, markdown(review))
    if args.junit is not None:
        write_file(args.junit, junit(review))


def _write_smallest(comparison: Comparison, folder: Path) -> None:
    """Write a capture for each group, numbered as in the table."""
    make_folder(folder)
    for number, group in enumerate(comparison.groups, 1):
        path = folder / f"group-{number}.trc"
        _write_some(path, comparison.a, group.reproduce)
        before = len(group.reproduce) - 1
        with_others = f" and {before} that it depends on" if before else ""
        print_message(f"{path}: request {group.smallest.number}{with_others}")


def _write_some(path: Path, capture: Capture, numbers: Sequence[int]) -> None:
    settings = {**capture.opening.settings, "request_of": capture.name}
    records: list[Record] = [dataclasses.replace(capture.opening, settings=settings)]
    exchanges = {exchange.request.number: exchange for exchange in capture.exchanges}
    for exchange in map(exchanges.__getitem__, numbers):
        records += [exchange.request, *exchange.messages]
        if exchange.response is not None:
            records.append(exchange.response)
    with contextlib.closing(CaptureWriter.create(path)) as writer:
        writer.write([*records, Closing(0, "stopped", {})])
