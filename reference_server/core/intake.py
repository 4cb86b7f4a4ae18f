"""What long requests of all clients hold together, from their first byte until they are freed.

Each connection has bounds of its own; this one is for many of them. Who would go beyond it is
refused, and what is short is not counted: small requests are served whatever the long ones do.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reference_server.core.errors import unavailable

#: Bytes of one request that nobody counts.
UNCOUNTED = 1 << 16
#: How much of its memory the process may have: in a container less than the machine has.
_CONTAINERS_LIMIT = Path("/sys/fs/cgroup/memory.max")


def half_of_memory() -> int:
    """Half of the memory that this process may use, in bytes of whole MiB."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # there is none
        memory = min(memory, int(_CONTAINERS_LIMIT.read_text()))
    return memory // 2 >> 20 << 20


class Intake:
    """All that is held: at most `most` bytes, and 0 is any number. Any thread."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._held = 0
        # What was freed, which may be at any moment, also while this thread has the lock.
        self._freed: deque[int] = deque()

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        with self._lock:
            return self._settled()

    def charge(self) -> Charge:
        """What one request holds, of which nothing has come yet."""
        return Charge(self._add, self._freed.append)

    def keep(self, data: memoryview) -> memoryview:
        """`data`, charged for as long as it is held. Raises ServerError UNAVAILABLE."""
        if len(data) <= UNCOUNTED:
            return data
        charge = self.charge()
        if not charge.grow(len(data)):
            raise unavailable(self.refusal(len(data)))
        return charge.hold(data)

    def _add(self, size: int) -> bool:
        with self._lock:
            if self.most and self._settled() + size > self.most:
                return False
            self._held += size
            return True

    def _settled(self) -> int:
        while self._freed:
            self._held -= self._freed.popleft()
        return self._held

    def refusal(self, length: int) -> str:
        """What is said of a request that has no room."""
        return (
            f"a request of {length} bytes finds no room: all clients' long requests may have "
            f"{self.most} bytes together"
        )


class _Held(np.ndarray[Any, Any]):
    """Bytes that keep their charge for as long as anybody sees them."""

    charge: Charge


class Charge:
    """What one request holds; given back when it is freed, by whatever thread."""

    __slots__ = ("_add", "_free", "_size")

    def __init__(self, add: Callable[[int], bool], free: Callable[[int], None]) -> None:
        self._add = add
        self._free = free
        self._size = 0

    def grow(self, size: int) -> bool:
        """So many bytes more have come; False if there is no room for them."""
        if not self._add(size):
            return False
        self._size += size
        return True

    def hold(self, data: Any) -> memoryview:  # noqa: ANN401 - whatever has a buffer
        """`data`, for as long as which all of this is held."""
        # Twice: NumPy has arrays over a view keep what is below it, as far as that is of their own
        # type, so over a view of a plain array they would not keep the view.
        held = np.frombuffer(data, np.uint8).view(_Held).view(_Held)
        held.charge = self
        return held.data

    def __del__(self) -> None:
        self._free(self._size)
