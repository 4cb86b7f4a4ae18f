"""The interface of a subcommand, and shared arguments and exit codes."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.errors import ArtifactFault

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


def add_rewrite(parser: argparse.ArgumentParser, graph_help: str, kind: str) -> None:
    """Add the arguments `graph` and `output`; the default of `output` is model.KIND.onnx."""
    add = parser.add_argument
    add("graph", type=Path, metavar="ONNX_FILE", help=graph_help)
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help=f"output file (default: beside the graph, model.{kind}.onnx for model.onnx)",
    )


def rewrite_target(given: argparse.Namespace, kind: str) -> Path:
    """Return the output file that the arguments of `add_rewrite` select.

    Raises ArtifactFault if the graph does not exist, or is the output file.
    """
    graph: Path = given.graph
    target: Path = given.output or graph.with_suffix(f".{kind}{graph.suffix}")
    if not graph.is_file():
        raise ArtifactFault(f"{graph}: found no file, expected an ONNX graph")
    if target.exists() and target.samefile(graph):
        raise ArtifactFault(f"{target}: found the graph itself, expected another output file")
    return target


def whole(text: str, least: int = 1) -> int:
    """Parse an integer of at least `least`. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a whole number of at least {least}"
        )
    return int(text)


def number(text: str, accepts: Callable[[float], bool], expected: str) -> float:
    """Parse a number for which `accepts` returns true. Raises ArgumentTypeError with `expected`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan  # fails every comparison
    if not accepts(value):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return value


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
