"""The shared memory through which tensors go from one process to the other, in one direction.

It is a file without a name: it is gone with the last process that has it, however that ends. Its
size is sealed, so neither side can take pages away from under the other. It is large and empty:
the kernel gives pages as they are written, and gets those back that were used beyond `KEPT_BYTES`
when nothing is in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

#: No element type needs more, and blocks of different tensors share no cache line.
ALIGNMENT = 64


class BlockAllocator:
    """Which blocks of a stretch of `limit` bytes are taken: integers alone. Not thread-safe.

    First fit from the front, so that what is used again is what is in the caches already; what is
    given back is joined with its free neighbours.
    """

    def __init__(self, limit: int) -> None:
        self._taken: dict[int, int] = {}
        # The free spans in order: where each begins and ends. Neighbours are never both free.
        self._begins = [0]
        self._ends = [limit]
        self._limit = limit

    def __repr__(self) -> str:
        return (
            f"BlockAllocator({len(self._taken)} taken, {self.used} of {self._limit} bytes, "
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
        for index, begin in enumerate(self._begins):
            end = self._ends[index]
            if end - begin < size:
                continue
            if end - begin == size:
                del self._begins[index], self._ends[index]
            else:
                self._begins[index] = begin + size
            self._taken[begin] = size
            return begin
        return None

    def give_back(self, offset: int) -> None:
        """Free the block at `offset`. Raises KeyError if none was taken there."""
        end = offset + self._taken.pop(offset)
        index = bisect_left(self._begins, offset)
        joins_before = index > 0 and self._ends[index - 1] == offset
        joins_after = index < len(self._begins) and self._begins[index] == end
        if joins_before and joins_after:
            self._ends[index - 1] = self._ends[index]
            del self._begins[index], self._ends[index]
        elif joins_before:
            self._ends[index - 1] = end
        elif joins_after:
            self._begins[index] = offset
        else:
            self._begins.insert(index, offset)
            self._ends.insert(index, end)


#: How much the tensors may take that are under way in one direction: address space, not memory.
LIMIT_BYTES = 16 << 30
#: How much stays in use when nothing is under way.
KEPT_BYTES = 64 << 20

_Bytes = npt.NDArray[np.uint8]


def create(limit: int = LIMIT_BYTES) -> int:
    """The descriptor of a new stretch of `limit` bytes, none of which takes memory yet."""
    descriptor = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, limit)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _mapped(descriptor: int) -> mmap.mmap:
    """All of it. Raises ValueError if its size is not sealed: who touches lost pages is killed."""
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("found a file that can be cut, expected one whose size is sealed")
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


class OutgoingMemory:
    """The side that writes: puts tensors into blocks, and frees these when it is told. Any thread.

    Closed, it has no room for anything.
    """

    def __init__(self, descriptor: int) -> None:
        self._map = _mapped(descriptor)
        self._bytes: _Bytes = np.frombuffer(self._map, np.uint8)
        self._blocks = BlockAllocator(len(self._map))
        self._high = 0  # how far anything was ever written since pages were given back
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"OutgoingMemory({self._blocks})"

    def put(self, data: memoryview) -> int | None:
        """Copy `data`, which is not empty, into a block; its offset, None if there is no room."""
        size = len(data)
        with self._lock:
            offset = self._blocks.take(size)
            if offset is None:
                return None
            self._high = max(self._high, offset + size)
            block = self._bytes[offset : offset + size]
        # NumPy rather than a slice of the map: it lets go of the GIL while it copies.
        np.copyto(block, np.frombuffer(data, np.uint8))
        return offset

    def give_back(self, offsets: Iterable[int]) -> None:
        """Free blocks that the other side uses no more."""
        with self._lock:
            for offset in offsets:
                self._blocks.give_back(offset)
            if self._blocks.is_unused and self._high > KEPT_BYTES:
                self._map.madvise(mmap.MADV_REMOVE, KEPT_BYTES, len(self._map) - KEPT_BYTES)
                self._high = KEPT_BYTES

    def close(self) -> None:
        """Give up the mapping, and the descriptor that Python keeps with it."""
        with self._lock:
            self._blocks = BlockAllocator(0)
            self._bytes = np.empty(0, np.uint8)
            with contextlib.suppress(BufferError):  # somebody copies: it goes with that
                self._map.close()


class _Lease(weakref.ref[_Bytes]):
    """Notes the offset of a block when nobody has a view of it any more."""

    __slots__ = ("offset",)
    offset: int


class IncomingMemory:
    """The side that reads: gives views of blocks, and tells which are no longer looked at.

    A view may be written to and belongs to whoever asked for it; it stays good as long as anything
    refers to it, be it an array made of it or an array made of that. Any thread.
    """

    def __init__(self, descriptor: int) -> None:
        self._map: mmap.mmap | None = _mapped(descriptor)
        self._leases: dict[int, _Lease] = {}
        self._ended: deque[int] = deque()

    def view(self, offset: int, size: int) -> memoryview:
        """The block at `offset`, whose content has `size` bytes.

        Raises ValueError if it lies elsewhere, or was given out and has not been told to be free.
        """
        if offset in self._leases:
            raise ValueError(f"found a second tensor at {offset} before the first was let go")
        assert self._map is not None, "nobody receives when it is closed"
        block = np.frombuffer(self._map, np.uint8, size, offset)
        # The garbage collector calls this at any point of any thread: it must not take a lock.
        lease = _Lease(block, self._end)
        lease.offset = offset
        self._leases[offset] = lease
        return block.data

    def close(self) -> None:
        """Give up the mapping, which lives on as long as its views."""
        self._map = None

    def _end(self, lease: weakref.ref[_Bytes]) -> None:
        assert isinstance(lease, _Lease)
        self._ended.append(lease.offset)

    def ended(self) -> list[int]:
        """The offsets of the blocks whose views have gone since it was asked last."""
        offsets: list[int] = []
        while self._ended:
            try:
                offset = self._ended.popleft()
            except IndexError:  # another thread was faster
                break
            del self._leases[offset]
            offsets.append(offset)
        return offsets
