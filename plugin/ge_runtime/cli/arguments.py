"""What the subcommands' arguments have in common."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def new_command(
    subparsers: Subparsers, name: str, *, help_: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    """The parser of one more command; `description` and `epilog` are shown as they are written."""
    return subparsers.add_parser(
        name,
        help=help_,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add `folder` and `version`: which model, and which of its version folders."""
    add = parser.add_argument
    add("folder", type=Path, metavar="MODEL_DIR", help="the folder with config.pbtxt")
    add("--version", type=int, metavar="N", help="the version folder (the highest there is)")


def whole(text: str) -> int:
    """An argument that is a whole number of at least 1. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least 1")
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
