"""Fakes of the modules of CANN and torch_npu, on sys.path like the real ones."""

from __future__ import annotations

import sys
from pathlib import Path

FAKES = Path(__file__).parents[2] / "fakes"
"""Fakes of `ge`, `torch_npu` and `torchair`."""


def forget(package):
    """Remove the package from the imported modules, so that its next import starts again."""
    for name in list(sys.modules):
        if name.partition(".")[0] == package:
            del sys.modules[name]
