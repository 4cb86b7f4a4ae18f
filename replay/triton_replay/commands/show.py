"""`triton-replay show`: print the content of a capture."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from triton_replay.capture.files import Capture, Exchange, read_capture
from triton_replay.capture.records import as_json
from triton_replay.commands.common import print_message, print_result
from triton_replay.commands.filtering import add_filter_options, filter_of
from triton_replay.comparing.latencies import latencies
from triton_replay.wire.grpc_messages import is_inference, model_of_call


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `show`."""
    parser.add_argument("capture", metavar="CAPTURE", type=Path, help="the capture to print")
    json_help = "print one line of JSON for each request, without bodies"
    parser.add_argument("--json", action="store_true", help=json_help)
    add_filter_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0. Raise ReplayError."""
    capture = filter_of(args).apply(read_capture(args.capture))
    lines = _json_lines(capture) if args.json else _table(capture)
    print_result("\n".join(lines))
    if capture.complaint:
        print_message(capture.complaint)
    return 0


def _json_lines(capture: Capture) -> list[str]:
    return [
        json.dumps(
            {
                "request": as_json(exchange.request),
                "response": exchange.response and as_json(exchange.response),
                "messages": [as_json(message) for message in exchange.messages],
            }
        )
        for exchange in capture.exchanges
    ]


def _table(capture: Capture) -> list[str]:
    opening = capture.opening
    seconds = max((exchange.request.end for exchange in capture.exchanges), default=0) / 1e9
    lines = [
        f"{capture.name}: {len(capture.exchanges)} requests to {opening.server} in "
        f"{seconds:.1f} s from {opening.started}"
    ]
    groups: defaultdict[tuple[str, str, str], list[Exchange]] = defaultdict(list)
    for exchange in capture.exchanges:
        request = exchange.request
        model = model_of_call(request.body) if is_inference(request.target) else ""
        target = f"{request.target} {model}".rstrip()
        groups[request.method, target, exchange.status].append(exchange)
    lines.append(f"{'requests':>8}  {'status':>6}  {'median ms':>9}  {'service':>8}  target")
    for (method, target, status), members in sorted(groups.items(), key=lambda g: -len(g[1])):
        summary = latencies(members)[1]
        medians = [
            f"{found[0].value / 1e6:.2f}" if found else "-"
            for found in (summary.percentiles, summary.service)
        ]
        lines.append(
            f"{len(members):>8}  {status:>6}  {medians[0]:>9}  {medians[1]:>8}  {method} {target}"
        )
    for reason, count in (capture.closing.counts if capture.closing else {}).items():
        lines.append(f"not recorded: {count} {reason}")
    return lines
