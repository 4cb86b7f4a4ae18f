"""`triton-replay generate`: write a capture of random requests."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from triton_replay.capture.files import CaptureWriter
from triton_replay.capture.records import Closing, Opening, Record, Request
from triton_replay.commands.common import package_version, print_message
from triton_replay.errors import ReplayError
from triton_replay.generating import (
    EXPECTED,
    NO_SIZES,
    Arrivals,
    InputPlan,
    Sizes,
    make_body,
    parse_input,
    read_sizes,
)

_EPOCH = "1970-01-01T00:00:00.000+00:00"
"""Constant start time, so that equal options produce equal bytes."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `generate`."""
    add = parser.add_argument
    add("--output", metavar="FILE", type=Path, required=True, help="the capture; must not exist")
    add("--model", metavar="NAME", required=True, help="model of all requests")
    add(
        "--input",
        metavar="INPUT",
        action="append",
        required=True,
        help=f"{EXPECTED}; repeatable. A word instead of a number is an axis of --sizes",
    )
    add("--sizes", metavar="FILE", type=Path, help="CSV histogram of sizes: tokens,count")
    add("--rate", metavar="N", type=float, default=10.0, help="requests per second; default: 10")
    add("--seconds", metavar="N", type=float, default=10.0, help="duration; default: 10")
    add("--burst", metavar="N", type=float, default=1.0, help="mean requests per burst; default: 1")
    swing_help = "variation of the rate, 0 to 1; default: 0"
    add("--swing", metavar="SHARE", type=float, default=0.0, help=swing_help)
    add("--period", metavar="N", type=float, help="seconds between peaks; default: --seconds")
    add("--connections", metavar="N", type=int, default=32, help="number of clients; default: 32")
    add("--seed", metavar="N", type=int, default=0, help="seed of all random choices; default: 0")


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0. Raise ReplayError."""
    for option in ("rate", "seconds", "period", "connections"):
        value = getattr(args, option)
        if value is not None and not 0 < value < math.inf:
            raise ReplayError(f"--{option}: found {value:g}, expected a number above 0")
    if not 1 <= args.burst < math.inf:
        raise ReplayError(f"--burst: found {args.burst:g}, expected a number of at least 1")
    if not 0 <= args.swing <= 1:
        raise ReplayError(f"--swing: found {args.swing:g}, expected a number from 0 to 1")
    sizes = read_sizes(args.sizes) if args.sizes else NO_SIZES
    inputs = [parse_input(text, sizes.axes) for text in args.input]
    for one, of in itertools.product(inputs, sizes.each()):
        one.check(of)
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(args).items()
        if name not in ("run", "output")
    }
    with contextlib.closing(CaptureWriter.create(args.output)) as writer:
        writer.write([Opening("none (generated)", _EPOCH, package_version(), settings)])
        for record in _requests(args, sizes, inputs):
            writer.write([record])
        writer.write([Closing(round(args.seconds * 1e9), "stopped", {})])
    print_message(f"{args.output}: {writer.requests} requests in {args.seconds:g} s")
    return 0


def _requests(args: argparse.Namespace, sizes: Sizes, inputs: list[InputPlan]) -> Iterator[Record]:
    # Two generators, so that different sizes do not change the times.
    when, what = random.Random(f"times {args.seed}"), random.Random(f"sizes {args.seed}")
    period = args.seconds if args.period is None else args.period
    arrivals = Arrivals(args.rate, args.burst, args.swing, period)
    target = f"/v2/models/{quote(args.model)}/infer"
    for number, at in enumerate(arrivals.times(args.seconds, when)):
        headers, body = make_body(inputs, sizes.draw(what), what)
        connection = number % args.connections
        yield Request(number, connection, at, at, "POST", target, headers, len(body), body)
