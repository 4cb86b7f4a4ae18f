"""Which parts of a stretch of memory are taken: integers alone, no memory.

First fit from the front, so that what is used again is what is in the caches already; what is
given back is joined with its free neighbours.
"""

from __future__ import annotations

from bisect import bisect_left

#: No element type needs more, and blocks of different tensors share no cache line.
ALIGNMENT = 64


class Blocks:
    """The blocks of a stretch of `limit` bytes. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._taken: dict[int, int] = {}
        # The free spans in order: where each begins and ends. Neighbours are never both free.
        self._begins = [0]
        self._ends = [limit]
        self._limit = limit

    def __repr__(self) -> str:
        return (
            f"Blocks({len(self._taken)} taken, {self.used} of {self._limit} bytes, "
            f"{len(self._begins)} free spans)"
        )

    @property
    def used(self) -> int:
        """The number of bytes in taken blocks, padding included."""
        return sum(self._taken.values())

    @property
    def is_unused(self) -> bool:
        """True if no block is taken."""
        return not self._taken

    def take(self, size: int) -> int | None:
        """The offset of a free block of at least `size` > 0 bytes; None if there is none."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        for place, begin in enumerate(self._begins):
            end = self._ends[place]
            if end - begin < size:
                continue
            if end - begin == size:
                del self._begins[place], self._ends[place]
            else:
                self._begins[place] = begin + size
            self._taken[begin] = size
            return begin
        return None

    def give_back(self, offset: int) -> None:
        """Free the block at `offset`. Raises KeyError if none was taken there."""
        end = offset + self._taken.pop(offset)
        place = bisect_left(self._begins, offset)
        joins_before = place > 0 and self._ends[place - 1] == offset
        joins_after = place < len(self._begins) and self._begins[place] == end
        if joins_before and joins_after:
            self._ends[place - 1] = self._ends[place]
            del self._begins[place], self._ends[place]
        elif joins_before:
            self._ends[place - 1] = end
        elif joins_after:
            self._begins[place] = offset
        else:
            self._begins.insert(place, offset)
            self._ends.insert(place, end)
