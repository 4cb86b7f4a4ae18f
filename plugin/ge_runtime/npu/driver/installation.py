"""An installation of CANN: how its Python packages are imported, and which release it is."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any, Final, TypeAlias

# A module, which comes without types.
Module: TypeAlias = Any


def apply_pythonpath() -> None:
    """Make what PYTHONPATH lists importable in an interpreter that ignores it; else nothing.

    CANN's set_env.sh lists its packages' folders there. Safe to call again.
    """
    # The model processes of Triton 2.51 with Python 3.11 are such: sys.flags.isolated is 1 there.
    # The folders come last, so that nothing that was found before is hidden.
    if sys.flags.ignore_environment:
        for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
            if folder not in sys.path:
                sys.path.append(folder)


def import_cann_module(name: str) -> Module:
    """A module of CANN's, or one that loads its libraries. Raises ImportError alone.

    Half an installation may raise anything: AttributeError where Python files and libraries are of
    different releases, OSError where a library is loaded by hand. Old releases of torch_npu end
    the process.
    """
    try:
        module = importlib.import_module(name)
        # torch_npu puts a stand-in for torchair into sys.modules, which loads it when it is used.
        _ = module.__spec__
    except ImportError:
        raise
    except (Exception, SystemExit) as error:
        raise ImportError(f"{type(error).__name__}: {error}", name=name) from error
    return module


_RUNNING: Final = re.compile(r"^\w+_running_version=\[(?:[^\]:]*:)?([^\]]+)\]", re.MULTILINE)
_INSTALLED: Final = re.compile(r"^version=(\S+)", re.MULTILINE)


def cann_version(home: Path) -> str | None:
    """E.g. 8.3.RC1, of the toolkit in `home`; None if no file there tells it.

    Releases have version.cfg, or ascend_toolkit_install.info for each processor, or both.
    """
    files = [
        (_RUNNING, home / "version.cfg"),
        *((_INSTALLED, file) for file in sorted(home.glob("*-linux/ascend_toolkit_install.info"))),
    ]
    matches = (pattern.search(read_text_or_none(file) or "") for pattern, file in files)
    return next((match[1] for match in matches if match), None)


def read_text_or_none(file: Path) -> str | None:
    """What is in the file, or None if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
