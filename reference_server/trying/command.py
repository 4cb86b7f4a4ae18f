"""The command `reference-server try DIR`: its options, and the copy of the folder."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from reference_server.trying.overlay import Choices, Overlay
from reference_server.trying.roots import find_roots, model_config
from reference_server.trying.trial import Trial

_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz")


def main(arguments: Sequence[str]) -> int:
    """Try the models of a folder. Return 0 if each model answers, else 1.

    Exits with code 2 if an option is invalid, or if the folder has no models.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    with contextlib.ExitStack() as cleanup:
        scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="try-")))
        try:
            overlay, roots = prepare(given.directory, scratch, _choices(given), given.root)
        except (ValueError, OSError) as error:
            parser.error(str(error))
        trial = Trial(overlay, scratch, sys.stdout, given)
        trial.describe(roots)
        trial.install()
        cleanup.callback(os.chdir, Path.cwd())
        os.chdir(overlay.clone)  # model code may use paths relative to the clone
        sys.dont_write_bytecode = True
        return trial.run()


def prepare(
    directory: Path, scratch: Path, choices: Choices, root: str = ""
) -> tuple[Overlay, Sequence[Path]]:
    """Return the prepared copy of a folder or archive, and all model repositories in it.

    Args:
        directory: A clone (of a Git repository), a model repository, a model's folder, or an
            archive of such a folder.
        scratch: An empty folder for the copy.
        choices: The options of the copy.
        root: The path of the repository in `directory`; "" chooses the most promising repository.

    Raises:
        ValueError: `directory` is not a folder or archive, or contains no model.
    """
    place = directory
    if place.is_file() and place.suffix in _ARCHIVES:
        place = _unpacked(place, scratch / "archive")
    if not place.is_dir():
        raise ValueError(f"{directory}: expected a folder or an archive")
    place = place.resolve()
    if model_config(place) is not None:
        overlay = Overlay(place.parent, place.parent, scratch, choices)
        overlay.keep_only(place.name)
        return overlay, [place.parent]
    roots = [(place / root).resolve()] if root else find_roots(place)
    if not roots:
        raise ValueError(f"{directory}: found no models; expected folders with config.pbtxt")
    return Overlay(place, roots[0], scratch, choices), roots


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reference-server try",
        description="Start the models of a clone, repository, model folder or archive in a "
        "prepared copy, send each model a sample request, and report what is missing. The folder "
        "is not changed.",
    )
    add = parser.add_argument
    # fmt: off
    add("directory", type=Path, metavar="DIR", help="a folder or an archive with models")
    add("--root", default="", metavar="PATH",
        help="the model repository in DIR, if there are several")
    add("--set", action="append", default=[], type=_pair, metavar="NAME=VALUE", dest="values",
        help="the value of a placeholder such as ${NAME}")
    add("--map", action="append", default=[], type=_pair, metavar="PATH=DIR", dest="maps",
        help="replace an absolute path in code and parameters")
    add("--gpu-groups", choices=["cpu", "refuse"], default="cpu",
        help="run GPU instances on the CPU, or refuse them (cpu)")
    add("--no-stand-ins", action="store_true", help="do not replace models that cannot run here")
    add("--install", action="store_true",
        help="install missing Python packages into a temporary folder")
    add("--once", action="store_true", help="stop the server after the table")
    # fmt: on
    for kind, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        add(f"--{kind}-port", type=int, default=port, metavar="PORT", help=f"({port})")
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(f"found '{text}'; expected NAME=VALUE")
    return name, value


def _choices(given: argparse.Namespace) -> Choices:
    return Choices(
        dict(given.values),
        {path: Path(folder) for path, folder in given.maps},
        given.gpu_groups == "cpu",
        not given.no_stand_ins,
    )


def _unpacked(archive: Path, into: Path) -> Path:
    keeps_inside = {} if archive.suffix == ".zip" else {"filter": "data"}
    if keeps_inside and not hasattr(tarfile, "data_filter"):
        raise ValueError(
            f"{archive}: found Python {platform.python_version()}; expected 3.11.4 or later, which "
            "checks the paths in an archive. Unpack the archive, and give its folder instead"
        )
    shutil.unpack_archive(archive, into, **keeps_inside)  # type: ignore[arg-type]
    entries = list(into.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else into
