"""A subcommand of `ge-runtime`, and the arguments and exit codes that subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXIT_NO: Final = 1
"""The exit code of a subcommand whose answer is no."""

EXIT_UNUSABLE: Final = 2
"""The exit code of arguments, which is argparse's own, or input that cannot be used."""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: how it is called, and what it does."""

    name: str
    help: str
    """One line for the list of all subcommands."""
    description: str
    """Shown as it is written, as is `epilog`."""
    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Gives the exit code. A RuntimeFault or OSError is printed, and exits with EXIT_UNUSABLE."""

    def add_to(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add its parser, whose `run` is that of the command."""
        parser = subparsers.add_parser(
            self.name,
            help=self.help,
            description=self.description,
            epilog=self.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # a script's abbreviation would break with the next option
        )
        self.add_arguments(parser)
        parser.set_defaults(run=self.run)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add `folder` and `version`: which model, and which of its version folders."""
    add = parser.add_argument
    add("folder", type=Path, metavar="MODEL_DIR", help="the folder with config.pbtxt")
    add("--version", type=int, metavar="N", help="the version folder (the highest there is)")


def whole(text: str, least: int = 1) -> int:
    """An argument that is a whole number of at least `least`. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a whole number of at least {least}"
        )
    return int(text)


def axis_sizes(text: str) -> dict[str, int]:
    """An argument of axes and sizes, e.g. tokens=512,height=64. Raises ArgumentTypeError."""
    sizes = {}
    for entry in text.split(","):
        axis, equals, size = entry.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(
                f"found {entry!r}, expected an axis and a size, e.g. tokens=512"
            )
        sizes[axis.strip()] = whole(size.strip())
    return sizes
