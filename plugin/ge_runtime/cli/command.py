"""The interface of a subcommand, and shared arguments and exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXIT_NO: Final = 1
"""Exit code of a check that fails."""

EXIT_UNUSABLE: Final = 2
"""Exit code for invalid arguments or input; argparse uses the same."""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand."""

    name: str
    help: str
    """One line for the list of subcommands."""
    description: str
    """Printed unchanged, like `epilog`."""
    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Returns the exit code. A RuntimeFault or OSError is printed and exits with EXIT_UNUSABLE."""

    def add_to(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the command's parser."""
        parser = subparsers.add_parser(
            self.name,
            help=self.help,
            description=self.description,
            epilog=self.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # otherwise a new option could break abbreviations in scripts
        )
        self.add_arguments(parser)
        parser.set_defaults(run=self.run)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the arguments `folder` and `version`."""
    add = parser.add_argument
    add("folder", type=Path, metavar="MODEL_DIR", help="model folder with config.pbtxt")
    add("--version", type=int, metavar="N", help="version folder (default: the highest)")


def whole(text: str, least: int = 1) -> int:
    """Parse an integer of at least `least`. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a whole number of at least {least}"
        )
    return int(text)


def axis_sizes(text: str) -> dict[str, int]:
    """Parse axes and sizes, e.g. tokens=512,height=64. Raises ArgumentTypeError."""
    sizes = {}
    for entry in text.split(","):
        axis, equals, size = entry.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(
                f"found {entry!r}, expected an axis and a size, e.g. tokens=512"
            )
        sizes[axis.strip()] = whole(size.strip())
    return sizes
