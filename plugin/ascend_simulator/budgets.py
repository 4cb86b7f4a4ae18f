"""What a process may have of a thing that a device has only so many of."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ascend_simulator.codes import Code, Refused


class Budget:
    """So many of one kind for each device. Callers hold the machine's lock."""

    def __init__(self, kind: str, most: int, code: Code) -> None:
        """kind: in the plural, for people. code: of the refusal when there are no more."""
        self._kind: Final = kind
        self._most: Final = most
        self._code: Final = code
        self._taken: Counter[int] = Counter()

    def take(self, device: int, what: str, count: int = 1) -> None:
        """`count` more are in use. Raises Refused where there are not as many, and takes none."""
        if self._taken[device] + count > self._most:
            raise Refused(
                self._code,
                f"{what}: found {self._taken[device]:,} of {self._most:,} {self._kind} of device "
                f"{device} in use, and {count} wanted",
            )
        self._taken[device] += count

    def give(self, device: int, count: int = 1) -> None:
        """`count` are no longer in use."""
        self._taken[device] -= count
