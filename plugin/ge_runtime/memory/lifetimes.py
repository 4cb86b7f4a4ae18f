"""Gives buffers integer offsets in one block of bytes: by their lifetimes, or on request.

Buffers that are never live together share bytes. Each buffer gets the lowest offset at which it
overlaps no buffer that is live with it. The order of placement decides the quality, so a few orders
are tried and improved, until the peak equals the lower bound or the attempts are used up. Equal
lifetimes always give equal offsets. `Suballocator` allocates ranges at any time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.errors import PlanFault

_ROUNDS: Final = 16
"""Largest number of improvements of an order. DenseNet-121 needs 2 to reach the bound."""

_WORK: Final = 250_000
"""Number of buffer pairs examined before no further order is tried: about a quarter of a second.

An encoder of 300 nodes has 2,000 pairs; only graphs with hundreds of live values reach this.
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
    """The buffers between a graph's inputs and outputs, for certain shapes of its inputs."""

    lifetimes: tuple[Lifetime, ...]
    unsized: int = 0
    """Number of results whose size is only known after an execution; they have no lifetime here."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Offsets of buffers in one arena."""

    offsets: Mapping[str, int]
    """Bytes from the arena's start, by name."""
    peak: int
    """Number of bytes that the arena needs."""
    lower_bound: int
    """Number of bytes that are live in the busiest step: no packing can have a lower peak."""


def pack(lifetimes: Iterable[Lifetime], alignment: int = 64) -> Packing:
    """Return offsets such that no two buffers overlap in any step.

    Args:
        lifetimes: The buffers; each has its own name.
        alignment: Offsets are multiples of it; sizes are rounded up to it, in the bound as well.

    Returns:
        The packing; its peak is at most the sum of all sizes.

    Raises:
        PlanFault: Two buffers have the same name.
    """
    buffers = tuple(lifetimes)
    names = len({buffer.name for buffer in buffers})
    if names < len(buffers):
        raise PlanFault(f"found {names} name(s) for {len(buffers)} buffers, expected one for each")
    arena = _Arena(buffers, alignment)
    # The first of equal peaks, so that equal lifetimes give equal offsets.
    peak, offsets = min(arena.attempts(), key=lambda attempt: attempt[0])
    by_name = {buffer.name: offset for buffer, offset in zip(buffers, offsets, strict=True)}
    return Packing(by_name, peak, arena.lower_bound)


class _Arena:
    """The buffers by index, and which of them are live together."""

    def __init__(self, buffers: Sequence[Lifetime], alignment: int) -> None:
        self._buffers = buffers
        self.sizes = [-(-buffer.nbytes // alignment) * alignment for buffer in buffers]
        self._neighbours: list[list[int]] = [[] for _ in buffers]
        self._live: dict[int, list[int]] = {}  # live buffers by step, if a buffer starts in it
        # A sweep: buffers that are still live when a buffer starts are its neighbours. In the
        # busiest step a buffer starts, as between such steps buffers only end.
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
        """Yield the peak and the offsets of each tried order of placement, at least one.

        Stops after a peak that equals the lower bound.
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
                # Buffers that end at the peak were placed too late; next time they are first.
                ends = [offset + size for offset, size in zip(offsets, self.sizes, strict=True)]
                order = sorted(order, key=lambda index: ends[index] < peak)

    def _place(self, order: Sequence[int]) -> tuple[int, Sequence[int]]:
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
        """Return the largest buffers first, as small buffers fit between them."""
        return sorted(
            range(len(self.sizes)),
            key=lambda index: (-self.sizes[index], self._buffers[index].first),
        )

    def _by_breadth(self) -> list[int]:
        """Return the buffers by step, the busiest step first; in each step the largest first."""
        steps = sorted(self._live, key=lambda step: (-self._breadth[step], step))
        return list(
            dict.fromkeys(
                index
                for step in steps
                for index in sorted(self._live[step], key=lambda index: -self.sizes[index])
            )
        )

    def _by_first(self) -> list[int]:
        """Return the buffers in the order of their first steps, in each step the largest first."""
        return sorted(
            range(len(self.sizes)),
            key=lambda index: (self._buffers[index].first, -self.sizes[index]),
        )


class Suballocator:
    """A best-fit allocator of the range [0, capacity), from low addresses. Not thread-safe.

    Adjacent free blocks are merged at once, so there is at most one more free block than there are
    allocations, and a single free block when nothing is allocated. Time grows with the logarithm of
    the number of blocks, plus the number of blocks that only the alignment rules out.
    """

    def __init__(self, capacity: int) -> None:
        """capacity: bytes, at least 1. Raises ValueError."""
        if capacity < 1:
            raise ValueError(f"capacity: found {capacity} bytes, expected at least 1")
        self.capacity = capacity
        self._free_bytes = capacity
        self._sizes: dict[int, int] = {}  # bytes of each allocation by its offset
        # Each free block three times: by its first byte, by the byte after it, and by size.
        self._ends: dict[int, int] = {0: capacity}
        self._starts: dict[int, int] = {capacity: 0}
        self._by_size: list[tuple[int, int]] = [(capacity, 0)]  # (bytes, offset), ascending

    def allocate(self, nbytes: int, alignment: int = 1) -> int | None:
        """Return the offset of a new allocation, or None if it does not fit.

        Bytes that the alignment skips stay free.

        Args:
            nbytes: At least 1.
            alignment: The offset is a multiple of it; at least 1.

        Raises:
            ValueError: An argument is below 1.
        """
        if nbytes < 1 or alignment < 1:
            raise ValueError(
                f"found {nbytes} bytes aligned to {alignment}, expected at least 1 of each"
            )
        by_size = self._by_size
        # From the smallest block that is large enough on: alignment may need a larger block.
        for place in range(bisect_left(by_size, (nbytes, 0)), len(by_size)):
            size, start = by_size[place]
            offset = start + -start % alignment
            if offset + nbytes <= start + size:
                break
        else:
            return None
        del by_size[place]
        end = self._ends.pop(start)
        del self._starts[end]
        if start < offset:
            self._add_free(start, offset)
        if offset + nbytes < end:
            self._add_free(offset + nbytes, end)
        self._sizes[offset] = nbytes
        self._free_bytes -= nbytes
        return offset

    def free(self, offset: int) -> None:
        """Free the allocation at `offset`. Raises ValueError without an allocation there."""
        nbytes = self._sizes.pop(offset, None)
        if nbytes is None:
            raise ValueError(f"found nothing at offset {offset:,}, expected an allocation")
        self._free_bytes += nbytes
        start, end = offset, offset + nbytes
        if (before := self._starts.pop(start, None)) is not None:
            del self._ends[before]
            self._drop_size(before, start)
            start = before
        if (after := self._ends.pop(end, None)) is not None:
            del self._starts[after]
            self._drop_size(end, after)
            end = after
        self._add_free(start, end)

    @property
    def free_bytes(self) -> int:
        """Number of free bytes in all blocks."""
        return self._free_bytes

    @property
    def largest_free(self) -> int:
        """Size of the largest free block in bytes; 0 if everything is allocated."""
        return self._by_size[-1][0] if self._by_size else 0

    def _add_free(self, start: int, end: int) -> None:
        self._ends[start] = end
        self._starts[end] = start
        insort(self._by_size, (end - start, start))

    def _drop_size(self, start: int, end: int) -> None:
        del self._by_size[bisect_left(self._by_size, (end - start, start))]

    def __repr__(self) -> str:
        return (
            f"<Suballocator: {self._free_bytes:,} of {self.capacity:,} bytes free in "
            f"{len(self._by_size)} block(s), the largest {self.largest_free:,}; "
            f"{len(self._sizes)} allocation(s)>"
        )
