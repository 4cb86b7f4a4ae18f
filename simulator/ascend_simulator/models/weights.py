"""A model's weight block, which must not change, and its workspace, whose content is undefined."""

from __future__ import annotations

import zlib
from threading import Lock
from typing import Final

import numpy as np

from ascend_simulator.memory.blocks import Block, Bytes
from ascend_simulator.violations import declare, violate

CHANGED = declare(
    "model.weights-changed", "Only a load of the same file may write a model's weight block."
)

_SLICE: Final = 256 * 1024


class WeightImage:
    """The bytes of a weight block: the bytes of the file's graph, truncated, or padded with zeros.

    Each execution checks one slice of 256 KiB in turn (0.1 ms), and the unload checks all slices.
    Small weights are therefore checked completely at every execution. A change in large weights is
    found at the unload at the latest. Safe from any thread.
    """

    def __init__(self, graph: bytes, nbytes: int) -> None:
        self.nbytes = nbytes
        whole = np.zeros(nbytes, np.uint8)
        _fill(whole, graph)
        self._sums = [_sum(whole[first : first + _SLICE]) for first in range(0, nbytes, _SLICE)]
        self._lock = Lock()
        self._next = 0

    def write(self, graph: bytes, target: Bytes) -> None:
        """Fill `target`, which has `nbytes` or more, as a load does."""
        _fill(target[: self.nbytes], graph)

    def is_same(self, other: WeightImage) -> bool:
        """Return whether the other image has the same bytes."""
        return self.nbytes == other.nbytes and self._sums == other._sums

    def check_next(self, content: Bytes, name: str) -> None:
        """Check one slice. Violates CHANGED."""
        if not self._sums:
            return
        with self._lock:
            index, self._next = self._next, (self._next + 1) % len(self._sums)
        self._check(content, index, name)

    def check_all(self, content: Bytes, name: str) -> None:
        """Check every slice. Violates CHANGED."""
        for index in range(len(self._sums)):
            self._check(content, index, name)

    def _check(self, content: Bytes, index: int, name: str) -> None:
        first = index * _SLICE
        end = min(first + _SLICE, self.nbytes)
        if _sum(content[first:end]) != self._sums[index]:
            violate(CHANGED, f"{name}: its weights were changed in bytes {first:,} to {end:,}")


def _fill(target: Bytes, graph: bytes) -> None:
    source = np.frombuffer(graph, np.uint8)[: target.nbytes]
    target[: source.nbytes] = source
    target[source.nbytes :] = 0


def _sum(piece: Bytes) -> int:
    return zlib.crc32(piece.data)


PATTERN: Final = 0xB7
"""The byte that fills a workspace, and the outputs of a failed execution."""


class Workspace:
    """A block of memory that models use as workspace, completely or in part.

    Filling some hundred MiB takes longer than a small execution. The block is therefore refilled
    only if it may have been written since the last fill, so that a reader always finds the pattern.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._own = 0
        self._filled = (0, 0)
        self._others = -1

    def others(self) -> int:
        """Return the number of writes so far that were not executions. Needs the process's lock."""
        return self._block.writes - self._own

    def submitted(self) -> None:
        """Count a submitted execution, which fills the block. Needs the process's lock."""
        self._own += 1

    def fill(self, ptr: int, nbytes: int, others: int) -> None:
        """Fill these bytes with the pattern.

        `others` is the count of other writes when the execution was submitted.
        """
        first = ptr - self._block.start
        end = first + nbytes
        if others == self._others and self._filled[0] <= first and end <= self._filled[1]:
            return
        self._block.content[first:end].fill(PATTERN)
        self._filled, self._others = (first, end), others
