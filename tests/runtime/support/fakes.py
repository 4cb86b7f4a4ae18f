"""The fakes of modules that CANN and torch_npu bring: on sys.path as those would be."""

from __future__ import annotations

import sys
from pathlib import Path

FAKES = Path(__file__).parents[2] / "fakes"
"""`ge`, `torch_npu` and `torchair`: none of them is the real one."""


def forget(package):
    """As if the package had never been imported: it begins anew with its next import."""
    for name in list(sys.modules):
        if name.partition(".")[0] == package:
            del sys.modules[name]
