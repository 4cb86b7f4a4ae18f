"""Allocates ranges of one block of bytes, as integer offsets."""

from __future__ import annotations

from bisect import bisect_left, insort


class Suballocator:
    """Best fit over the range [0, capacity), at the lowest address. Not thread-safe.

    Adjacent free blocks are merged at once, so there is at most one more free block than there are
    allocations, and a single one when nothing is allocated. Time grows with the logarithm of the
    number of blocks, plus the blocks that only the alignment rules out.
    """

    def __init__(self, capacity: int) -> None:
        """capacity: bytes, at least 1. Raises ValueError."""
        if capacity < 1:
            raise ValueError(f"capacity: found {capacity} bytes, expected at least 1")
        self.capacity = capacity
        self._free_bytes = capacity
        self._sizes: dict[int, int] = {}  # offset of each allocation to its bytes
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
        # From the smallest block that is large enough, on to larger ones if alignment needs more.
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
