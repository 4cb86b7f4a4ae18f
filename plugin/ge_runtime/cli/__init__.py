"""The command `ge-runtime`. Each subcommand is a module with a `COMMAND`.

Exit codes: 0 if it did what was asked, 2 for arguments or input that it cannot use; 1 is for
subcommands whose answer can be no.
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
import ge_runtime.cli.inspect as inspect
import ge_runtime.cli.probe_device as probe_device
import ge_runtime.cli.top as top
from ge_runtime.cli.command import EXIT_UNUSABLE
from ge_runtime.errors import RuntimeFault

COMMANDS: Final = tuple(
    module.COMMAND
    for module in (
        gears,
        build,
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
"""The exit code after Ctrl-C, as shells tell it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; its exit code.

    Exits by itself after --help, --version and bad arguments.
    """
    parser = argparse.ArgumentParser(
        prog="ge-runtime",
        description="Plans and checks models that ge_runtime executes.",
        epilog="Exit codes: 0 done, 1 the answer is no, 2 arguments or input that cannot be used, "
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
        # The reader of our output had enough, e.g. head; at exit Python would complain once more.
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
        return f"of {Path(__file__).parents[1]}, which is not installed"


def _unusable(reason: str) -> int:
    print(f"ge-runtime: {reason}", file=sys.stderr)
    return EXIT_UNUSABLE
