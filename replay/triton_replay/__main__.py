"""The command `triton-replay`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from triton_replay.commands import (
    compare,
    conformance,
    export,
    generate,
    load,
    record,
    replay,
    show,
)
from triton_replay.commands.common import package_version
from triton_replay.errors import ReplayError

_COMMANDS = {
    "record": (record, "write the requests of clients and the answers of a server to a capture"),
    "replay": (replay, "send the requests of a capture again and write the answers to another"),
    "compare": (compare, "tell which answers of two captures differ, and which are quicker"),
    "conformance": (conformance, "tell what a server serves of the Open Inference Protocol"),
    "export": (export, "write a capture for perf_analyzer and `ge-runtime gears`, or as tests"),
    "generate": (generate, "write a load that nobody recorded as a capture, by a seed"),
    "load": (load, "put load on a model, closed or open loop, and tell what becomes of it"),
    "show": (show, "print what is in a capture"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (docs/replay.md)."""
    given = make_parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except ReplayError as error:
        print(f"triton-replay: {error}", file=sys.stderr)
        return error.exit_code


def make_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = argparse.ArgumentParser(
        prog="triton-replay",
        description="Records the traffic of a Triton server, sends it again, compares the answers.",
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
