"""Buffers for copies of large inputs, reused for some time.

glibc returns large blocks to the kernel, and the pages of new blocks are faulted in one by one. For
an input of 602 KB that costs more than the copy (measured: docs/server.md).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Limits for idle buffers: bytes in all, and seconds for each.
_MOST_IDLE = 1 << 26
_KEPT_S = 10.0

_Bytes = npt.NDArray[np.uint8]


class _Loan(weakref.ref[_Bytes]):
    """A reference to a buffer's views, which are in use."""

    __slots__ = ("buffer",)
    buffer: _Bytes


class _Idle(NamedTuple):
    buffer: _Bytes
    since_s: float


class InputBuffers:
    """A pool of buffers of exact sizes. Thread-safe.

    A buffer returns to the pool when its last view is freed, including arrays made from a view.
    Call `release` periodically. `clock` is in seconds.
    """

    def __init__(
        self, most_idle: int = _MOST_IDLE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_idle = most_idle
        self._clock = clock
        self._lock = threading.Lock()
        self._loans: dict[int, _Loan] = {}  # by id
        # Guarded by `_lock`: idle buffers by size, the longest idle first.
        self._idle: dict[int, list[_Idle]] = {}
        self.idle_bytes = 0

    def take(self, size: int) -> memoryview:
        """Return a writable view of `size` bytes of any content."""
        buffer: _Bytes | None = None
        with self._lock:
            if idle := self._idle.get(size):
                buffer = idle.pop().buffer
                self.idle_bytes -= size
        if buffer is None:
            buffer = np.empty(size, np.uint8)
        lent = buffer.view()
        loan = _Loan(lent, self._returned)
        loan.buffer = buffer
        self._loans[id(loan)] = loan
        return lent.data

    def _returned(self, loan: weakref.ref[_Bytes]) -> None:
        assert isinstance(loan, _Loan)
        del self._loans[id(loan)]
        # The garbage collector may call this anywhere on any thread: it must not wait for a lock.
        if self._lock.acquire(blocking=False):
            try:
                size = loan.buffer.size
                if self.idle_bytes + size <= self._most_idle:
                    self._idle.setdefault(size, []).append(_Idle(loan.buffer, self._clock()))
                    self.idle_bytes += size
            finally:
                self._lock.release()

    def release(self) -> None:
        """Free buffers that have been idle for some time."""
        if not self.idle_bytes:
            return
        before_s = self._clock() - _KEPT_S
        with self._lock:
            for size, idle in tuple(self._idle.items()):
                kept = [one for one in idle if one.since_s > before_s]
                self.idle_bytes -= size * (len(idle) - len(kept))
                if kept:
                    self._idle[size] = kept
                else:
                    del self._idle[size]
