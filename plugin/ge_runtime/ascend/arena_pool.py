"""Blocks of one buffer on a card, for a library that asks for memory while it executes."""

from __future__ import annotations

from threading import Lock
from typing import Any, Final, TypeAlias

from ge_runtime.ascend.driver import Address
from ge_runtime.memory.suballocator import Suballocator

# The module ge.allocator and its objects, which come without types.
GeAllocators: TypeAlias = Any
GeAllocator: TypeAlias = Any
MemBlock: TypeAlias = Any

ALIGNMENT: Final = 512
"""Bytes. What GE aligns its own memory to; it promises to ask for nothing."""

_GRANULE: Final = 32


class ArenaPool:
    """Blocks that start at multiples of ALIGNMENT. Safe from any thread."""

    def __init__(self, start: Address, nbytes: int) -> None:
        """The range [start, start + nbytes), of which at least ALIGNMENT bytes are usable."""
        self._base = -(-start // ALIGNMENT) * ALIGNMENT
        self._places = Suballocator(start + nbytes - self._base)
        self._lock = Lock()
        self.peak_bytes = 0
        """The most that was taken at a time."""
        self.refused = 0
        """How often something did not fit: each is a defect of the capacity that was chosen."""

    @property
    def taken_bytes(self) -> int:
        """What is taken now, with what alignment and the rule for parts of a block add."""
        return self._places.capacity - self._places.free_bytes

    def take(self, nbytes: int) -> Address:
        """A block of at least so many bytes. Raises MemoryError if there is none."""
        # A part of a block that operators use takes its bytes rounded up to 32, and 32 more.
        needed = -(-max(1, nbytes) // _GRANULE) * _GRANULE + _GRANULE
        with self._lock:
            offset = self._places.allocate(needed, ALIGNMENT)
            if offset is None:
                self.refused += 1
                raise MemoryError(
                    f"found {nbytes:,} bytes wanted, expected at most "
                    f"{self._places.largest_free:,} in one piece, of {self._places.capacity:,}"
                )
            self.peak_bytes = max(self.peak_bytes, self.taken_bytes)
        return Address(self._base + offset)

    def give_back(self, address: Address) -> None:
        """Raises ValueError for what was not taken, or given back before."""
        with self._lock:
            self._places.free(address - self._base)


def allocator_over(pool: ArenaPool, allocators: GeAllocators) -> GeAllocator:
    """A `ge.allocator.Allocator` that serves from the pool.

    GE calls it from threads of its own, and keeps what it got by its identity: blocks stay
    referenced until they are given back. What it raises, GE takes for memory that is not there.
    """
    held: dict[int, MemBlock] = {}

    def malloc(_: GeAllocator, size: int) -> MemBlock:
        block = allocators.MemBlock(pool.take(size), size)
        held[id(block)] = block
        return block

    def free(_: GeAllocator, block: MemBlock) -> None:
        del held[id(block)]
        pool.give_back(Address(block.addr))

    return type("ArenaAllocator", (allocators.Allocator,), {"malloc": malloc, "free": free})()
