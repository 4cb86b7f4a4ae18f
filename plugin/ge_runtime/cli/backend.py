"""`ge-runtime backend`: installs ge_runtime as a backend of Triton, so that models need no code.

A Python-based backend is a folder with a `model.py` in Triton's backend directory. Models with
`backend: "ge"` consist of a config.pbtxt and their artifacts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from ge_runtime import backend
from ge_runtime.cli.command import Command
from ge_runtime.errors import RuntimeFault

NAME: Final = "ge"
"""The name for `backend` in config.pbtxt."""

MODEL: Final = Path(backend.__file__).with_name("model.py").read_text(encoding="utf-8")
"""The code of the backend, and of models with `backend: "python"` that need no other code."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", type=Path, help="Triton's --backend-directory, e.g. /opt/tritonserver/backends"
    )


def _run(given: argparse.Namespace) -> int:
    directory: Path = given.directory
    if not directory.is_dir():
        raise RuntimeFault(
            f"{directory}: found no such folder, expected Triton's --backend-directory, by default "
            "/opt/tritonserver/backends"
        )
    folder = directory / NAME
    folder.mkdir(exist_ok=True)
    file = folder / "model.py"
    file.write_text(MODEL, encoding="utf-8")
    print(file)
    return 0


COMMAND: Final = Command(
    name="backend",
    help='install the backend "ge", so that models need no code',
    description="Write the backend `ge` into Triton's backend directory.",
    epilog="Exit codes: 0 written, 2 the folder does not exist or is not writable.",
    add_arguments=_add_arguments,
    run=_run,
)
