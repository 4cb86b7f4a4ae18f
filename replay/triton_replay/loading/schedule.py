"""When the requests of an open loop are due. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from triton_replay.errors import ReplayError
from triton_replay.generating.arrivals import Arrivals


def evenly(rate: float, start: int) -> Iterator[int]:
    """So many a second, all gaps alike; nanoseconds from `start` on."""
    return (start + round(number * 1e9 / rate) for number in itertools.count())


def poisson(rate: float, start: int, chance: random.Random) -> Iterator[int]:
    """So many a second on average, independent of each other."""
    return (start + at for at in Arrivals(rate).times(float("inf"), chance))


def repeated(gaps: Sequence[int], start: int) -> Iterator[int]:
    """With these gaps in nanoseconds, over and over."""
    return itertools.accumulate(itertools.cycle(gaps), initial=start)


def read_intervals(path: Path) -> list[int]:
    """Gaps in nanoseconds from a file of microseconds, one a line. Raises ReplayError."""
    try:
        lines = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"--request-intervals {path}: cannot be read: {error}") from error
    gaps = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            gap = round(float(line) * 1000)
        except (ValueError, OverflowError):
            gap = 0
        if gap <= 0:
            raise ReplayError(
                f"{path}:{number}: found {line.strip()!r}, expected microseconds above 0"
            )
        gaps.append(gap)
    if not gaps:
        raise ReplayError(f"{path}: is empty, expected microseconds, one a line")
    return gaps
