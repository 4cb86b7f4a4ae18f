"""Where CANN's packages are found: `source set_env.sh` lists their folders in PYTHONPATH.

An embedded interpreter may have been told to ignore that variable. So it is in the model processes
of Triton 2.51 with Python 3.11: `sys.flags.isolated` is 1 there.
"""

from __future__ import annotations

import os
import sys


def heed_pythonpath() -> None:
    """Make what PYTHONPATH lists importable in an interpreter that ignores it; else nothing.

    It comes last, so that nothing that was found before is hidden. Safe to call again.
    """
    if sys.flags.ignore_environment:
        for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
            if folder not in sys.path:
                sys.path.append(folder)
