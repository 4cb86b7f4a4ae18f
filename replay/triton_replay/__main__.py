"""The command `triton-replay`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from triton_replay.commands import (
    ab,
    compare,
    conformance,
    export,
    generate,
    load,
    record,
    replay,
    shadow,
    show,
)
from triton_replay.commands.common import package_version, print_message
from triton_replay.errors import ReplayError

_COMMANDS = {
    "record": (record, "record requests and responses between clients and a server"),
    "replay": (replay, "send the requests of a capture again and record the responses"),
    "compare": (compare, "compare the responses and latencies of two captures"),
    "ab": (ab, "send each request to two servers at the same time and judge the differences"),
    "shadow": (shadow, "forward traffic to a server, send it to another one, and compare"),
    "conformance": (conformance, "check which parts of the Open Inference Protocol a server has"),
    "export": (export, "export a capture to perf_analyzer, `ge-runtime gears` or pytest"),
    "generate": (generate, "generate a capture of random requests from a seed"),
    "load": (load, "measure latency and throughput of a model under load"),
    "show": (show, "print the content of a capture"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Command-line arguments; None for `sys.argv[1:]`.

    Returns:
        The exit code; docs/replay.md lists them.
    """
    args = make_parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except ReplayError as error:
        print_message(f"triton-replay: {error}")
        return error.exit_code


def make_parser() -> argparse.ArgumentParser:
    """Return the parser with all commands and options."""
    parser = argparse.ArgumentParser(
        prog="triton-replay",
        description="Record, replay and compare the traffic of a Triton server.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"triton-replay {package_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for name, (module, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        module.add_options(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
