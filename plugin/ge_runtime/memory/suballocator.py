"""A suballocator: offsets in one range of bytes, given out and taken back as integers alone."""

from __future__ import annotations

from bisect import bisect_left, insort


class Suballocator:
    """Best fit over the range [0, capacity); equally good places go by the lowest address.

    Free neighbours are joined at once, so free memory is always as few blocks as it can be: at
    most one more than there are allocations, and a single one when nothing is allocated. Time
    grows with the logarithm of the number of blocks, but for places that only alignment rules
    out. Not thread-safe.
    """

    def __init__(self, capacity: int) -> None:
        """capacity: bytes, at least 1; otherwise ValueError."""
        if capacity < 1:
            raise ValueError(f"capacity: found {capacity} bytes, expected at least 1")
        self.capacity = capacity
        self._free_bytes = capacity
        self._sizes: dict[int, int] = {}  # offset -> bytes, of allocations
        # The free blocks three times: by first byte, by the byte after the last, and by size.
        self._ends: dict[int, int] = {0: capacity}
        self._starts: dict[int, int] = {capacity: 0}
        self._by_size: list[tuple[int, int]] = [(capacity, 0)]  # (bytes, offset), ascending

    def allocate(self, nbytes: int, alignment: int = 1) -> int | None:
        """The offset of `nbytes` bytes, a multiple of `alignment`; None if there is no such place.

        Bytes that alignment skips stay free. Raises ValueError unless both are at least 1.
        """
        if nbytes < 1 or alignment < 1:
            raise ValueError(
                f"found {nbytes} bytes aligned to {alignment}, expected at least 1 of each"
            )
        by_size = self._by_size
        # From the smallest that is large enough; on to larger ones where alignment takes too much.
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
        """Take back what was allocated at `offset`. Raises ValueError if nothing is."""
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
        """All that is free, in however many blocks."""
        return self._free_bytes

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block; 0 if all is allocated."""
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
