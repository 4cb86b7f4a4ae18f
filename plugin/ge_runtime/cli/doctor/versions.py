"""Versions, and which of Ascend's fit together.

Sources: the pages "Runtime Dependencies" and "CANN Software Installation" on hiascend.com for CANN
8.1 to 9.1 (Python, NumPy, protobuf); the table "Ascend Auxiliary Software" in the README of
github.com/Ascend/pytorch, from January to August 2026 (torch_npu).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TORCH_NPU: Final = {
    "2.12.0": "9.1.0",
    "2.11.0": "9.1.0",
    "2.10.0.post4": "9.1.0",
    "2.9.0.post6": "9.1.0",
    "2.7.1.post8": "9.1.0",
    "2.10.0": "9.0.0",
    "2.9.0.post2": "9.0.0",
    "2.8.0.post4": "9.0.0",
    "2.7.1.post4": "9.0.0",
    "2.9.0": "8.5.0",
    "2.8.0.post2": "8.5.0",
    "2.7.1.post2": "8.5.0",
    "2.8.0": "8.3.RC1",
    "2.7.1": "8.3.RC1",
}
"""Version of torch_npu: the CANN that it is made for. The newest first."""


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: (8, 3) of 8.3.RC1, (2, 9, 0) of 2.9.0.post6."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


@dataclass(frozen=True, slots=True)
class Range:
    """Versions from `least` to `most`, both included with all that begin with them."""

    least: tuple[int, ...]
    most: tuple[int, ...] | None = None

    def __contains__(self, version: tuple[int, ...]) -> bool:
        low = version[: len(self.least)] >= self.least
        return low and (self.most is None or version[: len(self.most)] <= self.most)

    def __str__(self) -> str:
        least = ".".join(map(str, self.least))
        if self.most is None:
            return f"at least {least}"
        most = ".".join(map(str, self.most))
        return f"{least}.x" if most == least else f"{least} to {most}.x"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one CANN release asks of Python and its packages; None where nothing is said."""

    python: Range | None
    numpy: Range
    protobuf: Range | None


_RULES: Final = {
    Range((8, 1), (8, 5)): Rule(
        # The pages name 3.11.4; extension modules do not tell patch releases apart.
        Range((3, 7), (3, 11)),
        Range((1, 19, 2), (1, 24)),
        Range((3, 20), (3, 20)),
    ),
    Range((8,), (8,)): Rule(None, Range((1, 19, 2), (1, 24)), Range((3, 20), (3, 20))),
    Range((9, 1), (9, 1)): Rule(Range((3, 7), (3, 14)), Range((1, 19, 2)), None),
}


def rule_of(cann: str) -> Rule | None:
    """What this CANN release asks for, or None if it is not known."""
    version = numbers(cann)
    return next((rule for range_, rule in _RULES.items() if version in range_), None)
