"""Attacks on live servers, and fuzzing of all decoders of received bytes.

    make campaign                  ten minutes on both hosts of the server and the real tritonserver
    make fuzz                      coverage-guided fuzzing of the decoders

The attacks start from the good requests in the tables of `tests/contract`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
REDUCED = ROOT / "tests" / "campaign" / "reduced"
"""Inputs that once caused a failure, reduced as far as possible. The tests send them again."""

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))

T = TypeVar("T", bytes, tuple[bytes, ...])


def reduced(failing: T, fails: Callable[[T], bool], most_trials: int = 2_000) -> T:
    """Reduce `failing` as far as possible to a part that still fails (delta debugging).

    Removes first halves and then smaller and smaller parts as long as the rest fails.

    Args:
        failing: Bytes, or a sequence of pieces that are removed as a whole.
        fails: Returns whether an input fails.
        most_trials: Upper limit of calls of `fails`.
    """
    size = max(len(failing) // 2, 1)
    trials = 0
    while failing and trials < most_trials:
        at, shorter = 0, False
        while at < len(failing) and trials < most_trials:
            rest = failing[:at] + failing[at + size :]
            trials += 1
            if fails(rest):
                failing, shorter = rest, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(size // 2, 1)
    return failing


def keep(kind: str, content: bytes, folder: Path = REDUCED) -> Path:
    """Save an input of this kind for the tests. The file name is a hash of the content."""
    name = hashlib.sha256(content).hexdigest()[:12]
    path = folder / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def kept(kind: str, folder: Path = REDUCED) -> Sequence[bytes]:
    """Return the saved inputs of this kind."""
    return [path.read_bytes() for path in sorted((folder / kind).glob("*"))]


class Defect(Exception):
    """A check failed; the text says which."""


def expect(holds: bool, text: str) -> None:
    """Raise Defect with this text unless `holds`."""
    if not holds:
        raise Defect(text)
