"""The fakes of modules that CANN and torch_npu bring: on sys.path as those would be."""

from __future__ import annotations

import sys
from pathlib import Path

FAKES = Path(__file__).parents[2] / "fakes"
"""`ge`, `torch_npu` and `torchair`: none of them is the real one."""


def forget(monkeypatch, *packages):
    """As if the packages had never been imported, for the length of a test."""
    for name in list(sys.modules):
        if name.partition(".")[0] in packages:
            monkeypatch.delitem(sys.modules, name)
