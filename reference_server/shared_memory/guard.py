"""Copies from and to mapped files that others can cut, at memcpy's speed.

Whoever touches a mapped page behind the end of its file gets SIGBUS, which ends the process; so
does who writes to a page when the file system has no memory left for it. Here the copy is told
instead.

The signal comes out of `memmove`, on the thread that called it, which has let go of the
interpreter lock for that: for the interpreter the handler is a callback from C like any other, and
`memmove` holds nothing that a handler could wait for. It maps empty pages in the place of the file,
and the copy goes on to its end. A SIGBUS from anywhere else goes to whoever handled it before.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import threading

import numpy as np

_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10  # which Python's mmap does not name
# Both are over in an instant: they keep the interpreter lock.
_libc = ctypes.PyDLL(None)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_long,
)
_signal = _libc.signal
_signal.restype = ctypes.c_void_p
_signal.argtypes = (ctypes.c_int, ctypes.c_void_p)

#: What each thread copies from or to. Changed by that thread alone, so that nothing is locked.
_in_use: dict[int, GuardedMapping] = {}


class GuardedMapping:
    """`byte_size` bytes from `offset` on of an open file, mapped. Any thread.

    Raises OSError, and ValueError if the file is shorter. With the last reference the mapping goes.
    `is_lost` once a page was not there: it has nothing of the file any more then.
    """

    def __init__(self, descriptor: int, byte_size: int, offset: int) -> None:
        self._pages = mmap.mmap(descriptor, byte_size, offset=offset)
        self._address: int = np.frombuffer(self._pages, np.uint8).ctypes.data
        self.is_lost = False
        #: The size of the whole file now.
        self.file_size = self._pages.size

    def read(self, offset: int, target: memoryview) -> bool:
        """Fill `target` with a copy of what is there; False if the mapping is lost."""
        address: int = np.frombuffer(target, np.uint8).ctypes.data
        return self._copy(address, self._address + offset, len(target))

    def write(self, offset: int, data: memoryview) -> bool:
        """Copy `data` there; False if the mapping is lost, with any part of it written."""
        source: int = np.frombuffer(data, np.uint8).ctypes.data
        return self._copy(self._address + offset, source, len(data))

    def _copy(self, target: int, source: int, byte_size: int) -> bool:
        _handle()
        thread = threading.get_ident()
        _in_use[thread] = self
        try:
            ctypes.memmove(target, source, byte_size)
        finally:
            del _in_use[thread]
        # Another thread may have lost it: then this one has copied empty pages.
        return not self.is_lost

    def lose(self) -> bool:
        """Have empty pages in the place of the file; False if there are none to be had."""
        self.is_lost = True
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        size = len(self._pages)
        return bool(_mmap(self._address, size, protection, flags, -1, 0) != _FAILED)


_before: int | None = None  # the handler whose place ours has taken


def _on_fault(number: int) -> None:
    mapping = _in_use.get(threading.get_ident())
    if mapping is None or not mapping.lose():
        _signal(number, _before)
        signal.raise_signal(number)


_callback = ctypes.CFUNCTYPE(None, ctypes.c_int)(_on_fault)
_HANDLER = ctypes.cast(_callback, ctypes.c_void_p).value


def _handle() -> None:
    """Handle SIGBUS. Before each copy: a model may have put a handler of its own in the place."""
    global _before
    before = _signal(signal.SIGBUS, _HANDLER)
    if before != _HANDLER:
        _before = before
