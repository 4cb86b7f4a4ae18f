"""See `ge`: memory that others give GE."""

from abc import ABC, abstractmethod


class MemBlock:
    """Memory on a device."""

    def __init__(self, addr, size):
        self._addr = addr
        self._size = size

    @property
    def addr(self):
        return self._addr

    @property
    def size(self):
        return self._size


class Allocator(ABC):
    """To be subclassed, and registered for a stream."""

    @abstractmethod
    def malloc(self, size):
        """A MemBlock. Raises MemoryError."""

    @abstractmethod
    def free(self, block):
        """Take back what `malloc` gave."""
