"""`ge-runtime backend`: makes ge_runtime a backend of Triton, so that models bring no code.

A Python-based backend is a folder with a `model.py` beside Triton's own backends. Models that say
`backend: "ge"` then consist of a config.pbtxt and their artifacts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from ge_runtime.cli.command import Command
from ge_runtime.errors import RuntimeFault

NAME: Final = "ge"
"""What models say: `backend: "ge"`."""

MODEL: Final = '''"""Models that say `backend: "ge"`: their artifacts, executed by ge_runtime."""

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel


class TritonPythonModel:
    def initialize(self, args):
        self._graph = GraphModel(args, pb_utils)

    def execute(self, requests):
        return self._graph.execute(requests)

    def is_ready(self):
        return self._graph.is_ready()

    def finalize(self):
        self._graph.close()
'''


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", type=Path, help="Triton's --backend-directory, e.g. /opt/tritonserver/backends"
    )


def _run(given: argparse.Namespace) -> int:
    directory: Path = given.directory
    if not directory.is_dir():
        raise RuntimeFault(
            f"{directory}: found no such folder, expected Triton's --backend-directory, which is "
            "/opt/tritonserver/backends unless told otherwise"
        )
    folder = directory / NAME
    folder.mkdir(exist_ok=True)
    file = folder / "model.py"
    file.write_text(MODEL, encoding="utf-8")
    print(file)
    return 0


COMMAND: Final = Command(
    name="backend",
    help='let models say backend: "ge" and bring no code',
    description="Write the backend `ge` into a folder of backends.",
    epilog="Exit codes: 0 written, 2 the folder is not there, or cannot be written.",
    add_arguments=_add_arguments,
    run=_run,
)
