"""Shared memory that passes tensors from one process to the other, in one direction.

It is an anonymous file, which the kernel frees with the last process that uses it. Its size is
sealed, so that neither process can remove pages of the other. The file is large and sparse: the
kernel allocates pages when they are written. Pages beyond `KEPT_BYTES` are returned to the kernel
when no block is in use.
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

#: Enough for every element type, and no two tensors share a cache line.
ALIGNMENT = 64


class BlockAllocator:
    """An allocator of blocks within `limit` bytes; works with integers only. Not thread-safe.

    It takes the first free span that fits, so that recently used memory, which is in the caches, is
    used again. Freed blocks are merged with free neighbours.
    """

    def __init__(self, limit: int) -> None:
        self._taken: dict[int, int] = {}
        # The start and end offsets of the free spans, in order. Neighbours are merged.
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
        """The number of bytes in allocated blocks, padding included."""
        return sum(self._taken.values())

    @property
    def is_unused(self) -> bool:
        """True if no block is allocated."""
        return not self._taken

    def take(self, size: int) -> int | None:
        """Allocate at least `size` > 0 bytes; return the offset, or None without room."""
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

    def free(self, offset: int) -> None:
        """Free the block at `offset`. Raises KeyError if there is no block."""
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


#: The limit for all tensors in flight in one direction: address space, not memory.
LIMIT_BYTES = 16 << 30
#: The memory that stays allocated when no tensor is in flight.
KEPT_BYTES = 64 << 20

_Bytes = npt.NDArray[np.uint8]


def create(limit: int = LIMIT_BYTES) -> int:
    """Return the descriptor of a new file of `limit` bytes, which uses no memory yet."""
    descriptor = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, limit)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _mapped(descriptor: int) -> mmap.mmap:
    """Map the file. Raises ValueError if its size is not sealed: lost pages cause SIGBUS."""
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("found a file that can shrink; expected a sealed size")
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


class OutgoingMemory:
    """The writing side: copies tensors into blocks and frees them on request. Thread-safe.

    After `close` there is no room for any tensor.
    """

    def __init__(self, descriptor: int) -> None:
        self._map = _mapped(descriptor)
        self._bytes: _Bytes = np.frombuffer(self._map, np.uint8)
        self._blocks = BlockAllocator(len(self._map))
        self._high = 0  # the end of the memory written since pages were returned
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"OutgoingMemory({self._blocks})"

    def put(self, data: memoryview) -> int | None:
        """Copy `data`, which is not empty, to a block; return its offset, or None without room."""
        size = len(data)
        with self._lock:
            offset = self._blocks.take(size)
            if offset is None:
                return None
            self._high = max(self._high, offset + size)
            block = self._bytes[offset : offset + size]
        # NumPy releases the GIL while it copies; a slice of the map does not.
        np.copyto(block, np.frombuffer(data, np.uint8))
        return offset

    def free(self, offsets: Iterable[int]) -> None:
        """Free blocks that the other side no longer uses."""
        with self._lock:
            for offset in offsets:
                self._blocks.free(offset)
            if self._blocks.is_unused and self._high > KEPT_BYTES:
                self._map.madvise(mmap.MADV_REMOVE, KEPT_BYTES, len(self._map) - KEPT_BYTES)
                self._high = KEPT_BYTES

    def close(self) -> None:
        """Unmap the memory and close the descriptor that Python keeps with the map."""
        with self._lock:
            self._blocks = BlockAllocator(0)
            self._bytes = np.empty(0, np.uint8)
            with contextlib.suppress(BufferError):  # a copy is running and holds the map
                self._map.close()


class _Lease(weakref.ref[_Bytes]):
    """A weak reference to a view, with the offset of the view's block."""

    __slots__ = ("offset",)
    offset: int


class IncomingMemory:
    """The reading side: returns views of blocks, and collects the offsets of unused blocks.

    A view is writable and belongs to the caller. It is valid while anything refers to it, such as
    an array of the view or an array of that array. Thread-safe.
    """

    def __init__(self, descriptor: int) -> None:
        self._map: mmap.mmap | None = _mapped(descriptor)
        self._leases: dict[int, _Lease] = {}
        self._ended: deque[int] = deque()

    def view(self, offset: int, size: int) -> memoryview:
        """Return a view of `size` bytes at `offset`.

        Raises ValueError if the range is invalid, or if an earlier view of the block was not freed.
        """
        if offset in self._leases:
            raise ValueError(f"found a second tensor at offset {offset}; expected a free block")
        assert self._map is not None, "receiving ends before the memory is closed"
        block = np.frombuffer(self._map, np.uint8, size, offset)
        # The garbage collector calls `_end` at any point of any thread: it must not take a lock.
        lease = _Lease(block, self._end)
        lease.offset = offset
        self._leases[offset] = lease
        return block.data

    def close(self) -> None:
        """Release the map; its views keep it alive."""
        self._map = None

    def _end(self, lease: weakref.ref[_Bytes]) -> None:
        assert isinstance(lease, _Lease)
        self._ended.append(lease.offset)

    def take_unused(self) -> list[int]:
        """Return the offsets of the blocks whose views have been freed since the last call."""
        offsets: list[int] = []
        while self._ended:
            try:
                offset = self._ended.popleft()
            except IndexError:  # another thread was faster
                break
            del self._leases[offset]
            offsets.append(offset)
        return offsets
