"""A failing input made as small as it can be, and kept where the suite sends it again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from campaign import REDUCED

T = TypeVar("T", bytes, tuple[bytes, ...])


def reduced(failing: T, fails: Callable[[T], bool], most_trials: int = 2_000) -> T:
    """The least part of `failing` that was found to fail still (delta debugging).

    Parts are left out, first halves and then ever smaller ones, while the rest fails; of bytes, or
    of a sequence of pieces. `fails` is asked `most_trials` times at most.
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
    """Write an input of this kind where the suite finds it; its name is of its content."""
    name = hashlib.sha256(content).hexdigest()[:12]
    path = folder / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def kept(kind: str, folder: Path = REDUCED) -> Sequence[bytes]:
    """The inputs of this kind that did harm once."""
    return [path.read_bytes() for path in sorted((folder / kind).glob("*"))]
