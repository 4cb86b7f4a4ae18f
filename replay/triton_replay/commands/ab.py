"""`triton-replay ab`: send each request to two servers at the same time, and judge differences."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from triton_replay.addresses import look_for_server
from triton_replay.capture.files import read_capture
from triton_replay.commands.common import (
    RULE_OPTIONS,
    add_headers,
    add_rules,
    clock_from_now,
    headers_of,
    print_message,
    print_result,
    rules_of,
    run_loop,
)
from triton_replay.commands.compare import add_review_options, write_review
from triton_replay.commands.filtering import add_filter_options, filter_of
from triton_replay.commands.tls import add_tls, server_of
from triton_replay.comparing.side_by_side import ModelVerdict, Results, differing, more_errors
from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.replaying.asking import SideBySide, comparable
from triton_replay.replaying.plan import Step, plan_replay
from triton_replay.reporting.ab_table import ab_document, ab_lines
from triton_replay.reporting.review import review_of_ab

_CONDITION: Final = re.compile(r"(differs|errors)>(\d+)|(p50|p90|p99|slowest)>(\d+(?:\.\d+)?)x")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ab`."""
    add = parser.add_argument
    add("capture", metavar="CAPTURE", type=Path, help="the capture with the requests")
    for name, what in (("a", "A"), ("b", "B"), ("a2", "a second copy of A")):
        more = "; shows how much two equal servers differ" if name == "a2" else ""
        add(
            f"--{name}", metavar="HOST:PORT", required=name != "a2", help=f"address of {what}{more}"
        )
        add(
            f"--{name}-grpc",
            metavar="HOST:PORT",
            help=f"address of {what} for gRPC; default: the next port",
        )
    add("--rounds", metavar="N", type=int, default=1, help="send the capture N times; default: 1")
    add("--in-flight", metavar="N", type=int, default=1, help="concurrent requests; default: 1")
    add_headers(add, timeout=300)
    add_rules(add, RULE_OPTIONS)
    add(
        "--learn",
        action="store_true",
        help="ignore what differs between two responses of A, even if it is more frequent in B",
    )
    add(
        "--at-least",
        metavar="PERCENT",
        default="5%",
        help="smallest change of a latency that is reported; default: 5%%",
    )
    add(
        "--fail-if",
        metavar="CONDITION",
        action="append",
        default=[],
        help="condition for exit code 1: differs>0, errors>0, p50>1.1x, p90>..., p99>..., "
        "slowest>...; repeatable; default: differs>0 and errors>0",
    )
    add("--seed", metavar="N", type=int, default=1, help="seed of the order; default: 1")
    add("--json", action="store_true", help="print JSON instead of the table")
    add_review_options(add)
    add_filter_options(parser)
    add_tls(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0, or 1 if a condition of --fail-if holds.

    Raises:
        ReplayError: A file or an option is invalid, or no request can be sent.
        ServerUnreachable: No server listens at an address, or no request was answered.
    """
    conditions = [_condition(text) for text in args.fail_if or ("differs>0", "errors>0")]
    at_least = _share(args.at_least)
    for name, number in (("--rounds", args.rounds), ("--in-flight", args.in_flight)):
        if number < 1:
            raise ReplayError(f"{name}: found {number}, expected 1 or more")
    names = [name for name in ("a", "b", "a2") if getattr(args, name)]
    servers = {name: server_of(args, f"--{name}", f"--{name}-grpc") for name in names}
    headers = headers_of(args)
    rules = rules_of(args)
    results = Results(rules, learn=args.learn)
    capture = filter_of(args).apply(read_capture(args.capture))
    if capture.complaint:
        print_message(capture.complaint)
    rules.names.check(capture.exchanges)
    steps, left_out = comparable(plan_replay(capture.exchanges, None), args.rounds)
    if not steps:
        raise ReplayError(f"{args.capture}: found no request that can be sent to two servers")
    protocols = sorted({step.exchange.request.protocol for step in steps})
    for name, server in servers.items():
        for protocol in protocols:
            if protocol == "grpc":
                look_for_server(server.grpc, f"--{name}-grpc")
            else:
                look_for_server(server.http, f"--{name}")
    shown = {
        name.upper(): server.http if "http" in protocols else server.grpc
        for name, server in servers.items()
    }
    asker = SideBySide(
        *(servers["a"], servers["b"], servers.get("a2")),
        headers=headers,
        timeout=args.timeout,
        clock=clock_from_now(),
        order=random.Random(args.seed),
        names=rules.names,
    )
    run_loop(_run(asker, steps, args.in_flight, results))
    for reason, count in left_out.items():
        print_message(f"not sent: {count} {reason}")
    for name, counts in zip(servers, asker.unanswered, strict=True):
        for reason, count in counts.items():
            print_message(f"{name.upper()}: no response {count} times: {reason}")
    if not results.answered:
        tried = " and ".join(map(str, shown.values()))
        raise ServerUnreachable(f"{tried}: none of {len(steps)} requests is answered")
    verdict = results.judged(at_least)
    if args.json:
        print_result(json.dumps(ab_document(shown, verdict), indent=2))
    else:
        print_result("\n".join(ab_lines(shown, verdict)))
    held = {text: holds(verdict) for text, holds in conditions}
    write_review(args, review_of_ab(shown, verdict, held))
    met = [text for text, holds in held.items() if holds]
    for text in met:
        print_message(f"--fail-if {text}: holds")
    return 1 if met else 0


async def _run(asker: SideBySide, steps: Sequence[Step], in_flight: int, results: Results) -> None:
    running = asyncio.ensure_future(asker.run(steps, in_flight, results.add))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        print_message(f"interrupted after {results.requests} of {len(steps)} requests")


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ReplayError(f"--at-least: found {text!r}, expected a percentage such as 5%")
    return share


_Holds = Callable[[Sequence[ModelVerdict]], bool]


def _condition(text: str) -> tuple[str, _Holds]:
    """Return a condition of --fail-if, and a function that returns whether it holds."""
    found = _CONDITION.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ReplayError(
            f"--fail-if: found {text!r}, expected differs>N, errors>N, or p50, p90, p99 or slowest "
            "with a factor, such as p99>1.1x"
        )
    if found[1] == "differs":
        return text, lambda verdict: differing(verdict) > int(found[2])
    if found[1] == "errors":
        return text, lambda verdict: more_errors(verdict) > int(found[2])
    factor = float(found[4])
    return text, lambda verdict: any(
        effect.verdict == "slower" and effect.ratio > factor
        for one in verdict
        for effect in one.effects
        if effect.statistic.startswith(found[3])
    )
