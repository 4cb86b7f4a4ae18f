"""An installation of CANN: importing its Python packages, and its version."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any, Final, TypeAlias

# A module without type stubs.
Module: TypeAlias = Any


def apply_pythonpath() -> None:
    """Add the folders of PYTHONPATH to sys.path if the interpreter ignores the variable.

    CANN's set_env.sh adds its packages' folders to PYTHONPATH. Safe to call again.
    """
    # The model processes of Triton 2.51 with Python 3.11 have sys.flags.isolated = 1. The folders
    # are appended, so that they hide no other modules.
    if sys.flags.ignore_environment:
        for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
            if folder not in sys.path:
                sys.path.append(folder)


def import_cann_module(name: str) -> Module:
    """Import a module of CANN, or one that loads its libraries. Raises only ImportError.

    An incomplete installation may raise any exception: AttributeError if Python files and libraries
    are of different releases, OSError if a library cannot be loaded. Old releases of torch_npu call
    `sys.exit`.
    """
    try:
        module = importlib.import_module(name)
        # torch_npu puts a lazy module for torchair into sys.modules; this access loads it.
        _ = module.__spec__
    except ImportError:
        raise
    except (Exception, SystemExit) as error:
        raise ImportError(f"{type(error).__name__}: {error}", name=name) from error
    return module


_RUNNING: Final = re.compile(r"^\w+_running_version=\[(?:[^\]:]*:)?([^\]]+)\]", re.MULTILINE)
_INSTALLED: Final = re.compile(r"^version=(\S+)", re.MULTILINE)


def cann_version(home: Path) -> str | None:
    """Return the version of the toolkit in `home`, e.g. 8.3.RC1; None if it is not known.

    Releases have version.cfg, or ascend_toolkit_install.info for each processor, or both.
    """
    files = [
        (_RUNNING, home / "version.cfg"),
        *((_INSTALLED, file) for file in sorted(home.glob("*-linux/ascend_toolkit_install.info"))),
    ]
    matches = (pattern.search(read_text_or_none(file) or "") for pattern, file in files)
    return next((match[1] for match in matches if match), None)


def read_text_or_none(file: Path) -> str | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
