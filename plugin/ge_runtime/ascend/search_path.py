"""CANN's packages: where they are found, and how those that are broken are told.

`source set_env.sh` lists their folders in PYTHONPATH.

An embedded interpreter may have been told to ignore that variable. So it is in the model processes
of Triton 2.51 with Python 3.11: `sys.flags.isolated` is 1 there.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, TypeAlias

# A module, which comes without types.
Module: TypeAlias = Any


def heed_pythonpath() -> None:
    """Make what PYTHONPATH lists importable in an interpreter that ignores it; else nothing.

    It comes last, so that nothing that was found before is hidden. Safe to call again.
    """
    if sys.flags.ignore_environment:
        for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
            if folder not in sys.path:
                sys.path.append(folder)


def import_broken_or_not(name: str) -> Module:
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
