"""Attacks on live servers, and fuzzing of everything that decodes bytes from outside.

    make campaign                  ten minutes on both hosts of the server and the real tritonserver
    make fuzz                      coverage-guided fuzzing of the decoders

The attacks start from the good requests in the tables of `tests/contract`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REDUCED = ROOT / "tests" / "campaign" / "reduced"
"""Inputs that once caused a failure, reduced as far as possible. The tests send them again."""

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))
