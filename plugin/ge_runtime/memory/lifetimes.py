"""The packing of buffers by lifetimes: those that are never live together share bytes.

Each buffer is put at the lowest offset where it meets none that is live with it. Which goes first
decides how good that is, so a few orders are tried and bettered, until the peak is the least that
there can be or the attempts are used up. The same lifetimes always give the same offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.errors import PlanFault

_ROUNDS: Final = 16
"""Times that an order is bettered. DenseNet-121 needs 2 to come from 1.05 to 1.00 of the bound."""

_WORK: Final = 250_000
"""Pairs of buffers looked at before no further order is tried: about a quarter of a second.

An encoder of 300 nodes has 2,000 pairs; only graphs that hold hundreds of values at once get here.
"""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `nbytes` that holds data from step `first` to step `last`, both included."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Intermediates:
    """What a graph holds between its inputs and its outputs, for certain shapes of its inputs."""

    lifetimes: tuple[Lifetime, ...]
    unsized: int = 0
    """Results whose size only an execution tells, and which are not among the lifetimes."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Where buffers lie in one arena."""

    offsets: Mapping[str, int]
    """Bytes from the arena's start, by name."""
    peak: int
    """The bytes that the arena needs."""
    lower_bound: int
    """The bytes that are live in the busiest step: no packing can have a lower peak."""


def pack(lifetimes: Iterable[Lifetime], alignment: int = 64) -> Packing:
    """Offsets, multiples of `alignment`, such that no two buffers share a byte in any step.

    Sizes count rounded up to `alignment`, in the bound as well. The peak is at most their sum.
    Raises PlanFault if a name is there twice.
    """
    buffers = tuple(lifetimes)
    names = len({buffer.name for buffer in buffers})
    if names < len(buffers):
        raise PlanFault(f"found {names} name(s) for {len(buffers)} buffers, expected one for each")
    arena = _Arena(buffers, alignment)
    # Of equal peaks the first: attempts come in one order, so that equal lifetimes lie equally.
    peak, offsets = min(arena.attempts(), key=lambda attempt: attempt[0])
    by_name = {buffer.name: offset for buffer, offset in zip(buffers, offsets, strict=True)}
    return Packing(by_name, peak, arena.lower_bound)


class _Arena:
    """The buffers by index, and which of them are live together."""

    def __init__(self, buffers: Sequence[Lifetime], alignment: int) -> None:
        self._buffers = buffers
        self.sizes = [-(-buffer.nbytes // alignment) * alignment for buffer in buffers]
        self._neighbours: list[list[int]] = [[] for _ in buffers]
        self._live: dict[int, list[int]] = {}  # steps in which a buffer begins: what is live then
        # A sweep: what is still live as a buffer begins is its neighbour. Only such a step can be
        # the busiest, since between two of them buffers end and none begins.
        live: list[int] = []
        for index in self._by_first():
            first = buffers[index].first
            live = [other for other in live if buffers[other].last >= first]
            for other in live:
                self._neighbours[index].append(other)
                self._neighbours[other].append(index)
            live.append(index)
            self._live[first] = live[:]
        self._breadth = {
            step: sum(self.sizes[index] for index in live) for step, live in self._live.items()
        }
        self.lower_bound = max(self._breadth.values(), default=0)

    def attempts(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Peaks and offsets, one for each order of placing that is tried; at least one.

        No more follow a peak that is the lower bound.
        """
        pairs = sum(map(len, self._neighbours))
        work = 0
        for first_order in (self._by_size, self._by_breadth, self._by_first):
            order = first_order()
            for _ in range(1 + _ROUNDS):
                peak, offsets = self._place(order)
                yield peak, offsets
                work += pairs
                if peak == self.lower_bound or work > _WORK:
                    return
                # What ends at the peak came too late to find room further down: it goes first.
                ends = [offset + size for offset, size in zip(offsets, self.sizes, strict=True)]
                order = sorted(order, key=lambda index: ends[index] < peak)

    def _place(self, order: Sequence[int]) -> tuple[int, Sequence[int]]:
        """Each buffer in turn at the lowest offset that is free while it lives."""
        sizes, peak = self.sizes, 0
        offsets = [-1] * len(sizes)
        for index in order:
            taken = sorted(
                (offsets[other], offsets[other] + sizes[other])
                for other in self._neighbours[index]
                if offsets[other] >= 0
            )
            offset = 0
            for start, end in taken:
                if start - offset >= sizes[index]:
                    break
                offset = max(offset, end)
            offsets[index] = offset
            peak = max(peak, offset + sizes[index])
        return peak, offsets

    def _by_size(self) -> list[int]:
        """Largest first: what is small finds room between."""
        return sorted(
            range(len(self.sizes)),
            key=lambda index: (-self.sizes[index], self._buffers[index].first),
        )

    def _by_breadth(self) -> list[int]:
        """The buffers of the busiest step first, then those of the next; in each by size."""
        steps = sorted(self._live, key=lambda step: (-self._breadth[step], step))
        return list(
            dict.fromkeys(
                index
                for step in steps
                for index in sorted(self._live[step], key=lambda index: -self.sizes[index])
            )
        )

    def _by_first(self) -> list[int]:
        """As an allocator meets them while the graph runs, the larger first in each step."""
        return sorted(
            range(len(self.sizes)),
            key=lambda index: (self._buffers[index].first, -self.sizes[index]),
        )
