"""The contents of a model's weight block, which must stay, and of its workspace, which must not."""

from __future__ import annotations

import zlib
from threading import Lock
from typing import Final

import numpy as np

from ascend_simulator.memory.blocks import Block, Bytes
from ascend_simulator.violations import declare, violate

CHANGED = declare(
    "model.weights-changed", "Nothing but a load of the same file writes a model's weight block."
)

_SLICE: Final = 256 * 1024


class WeightImage:
    """The bytes of a weight block: those of the file's graph, as far as they fit, then zeros.

    Each execution checks one slice of 256 KiB in turn, 0.1 ms, and the unload all of them: small
    weights are checked whole at every execution, and an overwritten part of large ones is found
    at the latest when the model goes. Safe from any thread.
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
        """Whether the other has the same bytes."""
        return self.nbytes == other.nbytes and self._sums == other._sums

    def check_next(self, content: Bytes, name: str) -> None:
        """Look at one slice. Violates CHANGED."""
        if not self._sums:
            return
        with self._lock:
            index, self._next = self._next, (self._next + 1) % len(self._sums)
        self._check(content, index, name)

    def check_all(self, content: Bytes, name: str) -> None:
        """Look at every slice. Violates CHANGED."""
        for index in range(len(self._sums)):
            self._check(content, index, name)

    def _check(self, content: Bytes, index: int, name: str) -> None:
        first = index * _SLICE
        end = min(first + _SLICE, self.nbytes)
        if _sum(content[first:end]) != self._sums[index]:
            violate(CHANGED, f"{name}: found other weights in bytes {first:,} to {end:,}")


def _fill(target: Bytes, graph: bytes) -> None:
    source = np.frombuffer(graph, np.uint8)[: target.nbytes]
    target[: source.nbytes] = source
    target[source.nbytes :] = 0


def _sum(piece: Bytes) -> int:
    return zlib.crc32(piece.data)


PATTERN: Final = 0xB7
"""Fills a workspace, and outputs of an execution that failed."""


class Workspace:
    """A block of memory that models have as workspace, or a part of it.

    Filling some hundred MiB takes longer than a small execution. Whoever looks finds the pattern
    all the same: what was filled is filled again only if somebody may have written since.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._own = 0
        self._filled = (0, 0)
        self._others = -1

    def others(self) -> int:
        """How often others than executions wrote so far. Callers hold the process's lock."""
        return self._block.writes - self._own

    def submitted(self) -> None:
        """An execution that fills it was submitted. Callers hold the process's lock."""
        self._own += 1

    def fill(self, ptr: int, nbytes: int, others: int) -> None:
        """The execution runs before which there were `others`: these bytes hold the pattern now."""
        first = ptr - self._block.start
        end = first + nbytes
        if others == self._others and self._filled[0] <= first and end <= self._filled[1]:
            return
        self._block.content[first:end].fill(PATTERN)
        self._filled, self._others = (first, end), others
