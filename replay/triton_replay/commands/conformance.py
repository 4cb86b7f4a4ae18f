"""`triton-replay conformance`: what a server serves of the Open Inference Protocol."""

from __future__ import annotations

import argparse
import json

from triton_replay.addresses import look_for_server, parse_address
from triton_replay.commands.common import print_result
from triton_replay.conformance.subject import look_at
from triton_replay.conformance.suite import run_suite
from triton_replay.errors import ReplayError
from triton_replay.reporting.conformance_table import conformance_lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `conformance`."""
    add = parser.add_argument
    add("--server", metavar="HOST:PORT", default="127.0.0.1:8000", help="default: %(default)s")
    add("--grpc", metavar="HOST:PORT", help="try gRPC there as well")
    add("--model", metavar="NAME", default="", help="default: the first of the index that is ready")
    add("--timeout", metavar="SECONDS", type=float, default=30.0, help="default: 30")
    add("--json", action="store_true", help="all cases as JSON")


def run(given: argparse.Namespace) -> int:
    """Print the table; 1 if what must hold does not. Raises ReplayError."""
    if not given.timeout > 0:
        raise ReplayError(f"--timeout: found {given.timeout:g}, expected seconds above 0")
    server = parse_address(given.server, "--server")
    grpc = parse_address(given.grpc, "--grpc") if given.grpc else None
    look_for_server(server, "--server")
    if grpc is not None:
        look_for_server(grpc, "--grpc")
    subject = look_at(server, grpc, given.model, given.timeout)
    chapters = run_suite(subject)
    if given.json:
        found = [one.as_json() for one in chapters]
        document = {"server": str(server), "model": subject.model, "extensions": found}
        print_result(json.dumps(document))
    else:
        print_result("\n".join(conformance_lines(subject, chapters)))
    return int(any(one.verdict == "fails" for one in chapters))
