"""The campaign: what a server stands from clients, neighbours and machines that mean it no good.

    make campaign                  ten minutes over live servers, ours and the real one
    make fuzz                      bytes into the decoders, guided by what they reach

What it knows of good requests are the tables of the tests, which import each other from there.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REDUCED = ROOT / "tests" / "campaign" / "reduced"
"""Inputs that once did harm, each as small as it could be made; the suite sends them again."""

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))
