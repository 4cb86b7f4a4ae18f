"""A memory budget shared by all clients' large requests.

A request is charged from its first byte until it is freed. A request beyond the budget is refused.
Small requests are not charged, so that large ones cannot block them. Each connection has limits of
its own in addition.
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

#: Requests up to this size, in bytes, are not charged.
UNCOUNTED = 1 << 16
#: The memory limit of the container.
_CONTAINERS_LIMIT = Path("/sys/fs/cgroup/memory.max")


def half_of_memory() -> int:
    """Return half of the memory that this process may use, in bytes, rounded down to MiB."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no container, or no limit
        memory = min(memory, int(_CONTAINERS_LIMIT.read_text()))
    return memory // 2 >> 20 << 20


class Intake:
    """The budget of `most` bytes; 0: no limit. Thread-safe."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._held = 0
        # The sizes of freed requests. Freeing can happen while this thread holds the lock.
        self._freed: deque[int] = deque()

    @property
    def held(self) -> int:
        """The charged bytes."""
        with self._lock:
            return self._settled()

    def charge(self) -> Charge:
        """Return the charge of a new request, which is empty."""
        return Charge(self._add, self._freed.append)

    def keep(self, data: memoryview) -> memoryview:
        """Return `data`, charged until it is freed.

        Raises:
            ServerError: UNAVAILABLE; the budget is exceeded.
        """
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
        """Return the error text for a request of `length` bytes beyond the budget."""
        return (
            f"request of {length} bytes rejected: the limit of {self.most} bytes for all large "
            "requests in flight is reached (--connection-memory-mib)"
        )


class _Held(np.ndarray[Any, Any]):
    """An array that keeps its charge alive as long as a view of it exists."""

    charge: Charge


class Charge:
    """The charged bytes of one request. Returned to the budget when the object is freed."""

    __slots__ = ("_add", "_free", "_size")

    def __init__(self, add: Callable[[int], bool], free: Callable[[int], None]) -> None:
        self._add = add
        self._free = free
        self._size = 0

    def grow(self, size: int) -> bool:
        """Charge `size` more bytes; return False if the budget is exceeded."""
        if not self._add(size):
            return False
        self._size += size
        return True

    def hold(self, data: Any) -> memoryview:  # noqa: ANN401 - any buffer
        """Return a view of `data`; this charge is kept until all views are freed."""
        # Two views: NumPy sets the base of a view to the base array's base if that has the same
        # type. A single view over a plain array would therefore not be kept alive.
        held = np.frombuffer(data, np.uint8).view(_Held).view(_Held)
        held.charge = self
        return held.data

    def __del__(self) -> None:
        self._free(self._size)
