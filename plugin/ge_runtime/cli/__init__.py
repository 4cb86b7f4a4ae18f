"""The command `ge-runtime`. Each subcommand is a module with a `COMMAND`.

Exit codes: 0 for success, 1 for a check that fails, 2 for invalid arguments or input.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import ge_runtime.cli.backend as backend
import ge_runtime.cli.bench as bench
import ge_runtime.cli.build as build
import ge_runtime.cli.compare as compare
import ge_runtime.cli.conformance as conformance
import ge_runtime.cli.convert as convert
import ge_runtime.cli.doctor as doctor
import ge_runtime.cli.gears as gears
import ge_runtime.cli.init as init
import ge_runtime.cli.inspect as inspect
import ge_runtime.cli.probe_device as probe_device
import ge_runtime.cli.quantize as quantize
import ge_runtime.cli.serve as serve
import ge_runtime.cli.top as top
import ge_runtime.cli.unpad as unpad
from ge_runtime.cli.command import EXIT_UNUSABLE
from ge_runtime.errors import RuntimeFault

COMMANDS: Final = tuple(
    module.COMMAND
    for module in (
        serve,
        init,
        gears,
        build,
        quantize,
        unpad,
        inspect,
        compare,
        bench,
        conformance,
        doctor,
        top,
        convert,
        backend,
        probe_device,
    )
)

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code after Ctrl-C, as in shells."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code.

    Raises SystemExit for --help, --version and invalid arguments.
    """
    parser = argparse.ArgumentParser(
        prog="ge-runtime",
        description="Plan, build and check models for ge_runtime.",
        epilog="Exit codes: 0 success, 1 a check failed, 2 invalid arguments or input, "
        f"{INTERRUPTED} interrupted by Ctrl-C.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ge-runtime {_version()}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for command in COMMANDS:
        command.add_to(subparsers)
    given = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = given.run
    try:
        code = run(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader closed the pipe, e.g. head. Without this, Python reports the error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        return _unusable(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except RuntimeFault as error:
        return _unusable(str(error))


def _version() -> str:
    try:
        return version("ge-runtime")
    except PackageNotFoundError:
        return f"unknown: {Path(__file__).parents[1]} is not installed"


def _unusable(reason: str) -> int:
    print(f"ge-runtime: {reason}", file=sys.stderr)
    return EXIT_UNUSABLE
