"""`triton-replay conformance`: check a server against the Open Inference Protocol."""

from __future__ import annotations

import argparse
import json

from triton_replay.addresses import look_for_server, parse_address
from triton_replay.commands.common import check_timeout, print_result
from triton_replay.commands.tls import add_tls, grpc_tls_of, https_of
from triton_replay.conformance.subject import inspect_server
from triton_replay.conformance.suite import run_suite
from triton_replay.reporting.table import conformance_lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `conformance`."""
    add = parser.add_argument
    server_help = "address for HTTP; default: %(default)s"
    add("--server", metavar="HOST:PORT", default="127.0.0.1:8000", help=server_help)
    add("--grpc", metavar="HOST:PORT", help="address for gRPC; default: gRPC is not checked")
    model_help = "model for inferences; default: the first ready model of the index"
    add("--model", metavar="NAME", default="", help=model_help)
    timeout_help = "time limit of a request; default: 30"
    add("--timeout", metavar="SECONDS", type=float, default=30.0, help=timeout_help)
    add("--json", action="store_true", help="print all cases as JSON")
    add_tls(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; return 1 if a required case fails, otherwise 0. Raise ReplayError."""
    check_timeout(args.timeout)
    server = parse_address(args.server, "--server", tls=True)
    grpc = parse_address(args.grpc, "--grpc") if args.grpc else None
    look_for_server(server, "--server")
    if grpc is not None:
        look_for_server(grpc, "--grpc")
    contexts = https_of(args, args.server), grpc_tls_of(args)
    subject = inspect_server(server, grpc, args.model, args.timeout, *contexts)
    chapters = run_suite(subject)
    if args.json:
        found = [one.as_json() for one in chapters]
        document = {"server": str(server), "model": subject.model, "extensions": found}
        print_result(json.dumps(document))
    else:
        print_result("\n".join(conformance_lines(subject, chapters)))
    return int(any(one.verdict == "fails" for one in chapters))
