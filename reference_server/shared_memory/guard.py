"""Copies from and to mapped files that other processes may truncate, at memcpy's speed.

Accessing a mapped page after the end of its file raises SIGBUS, which ends the process. The same
happens when a page is written and the file system has no memory left for it. With this module the
copy fails instead.

The signal is raised in `memmove`, on the thread that called it, which has released the
interpreter's lock for the call. For the interpreter, the handler is an ordinary callback from C,
and `memmove` holds no lock that the handler could wait for. The handler maps empty pages in place
of the file, and the copy continues to its end. A SIGBUS from anywhere else is passed to the
previous handler.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import threading

import numpy as np

_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10  # not defined by Python's mmap
# Both calls return at once, so they keep the interpreter's lock.
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

#: The mapping that each thread copies from or to. Only that thread changes its entry, so no lock is
#: needed.
_in_use: dict[int, GuardedMapping] = {}


class GuardedMapping:
    """A mapping of `byte_size` bytes of an open file, from `offset` on. Thread-safe.

    The mapping is removed with the last reference. `is_lost` is True once a page was missing; after
    that the mapping no longer shows the file.

    Raises:
        OSError: the file cannot be mapped.
        ValueError: the file is shorter.
    """

    def __init__(self, descriptor: int, byte_size: int, offset: int) -> None:
        self._pages = mmap.mmap(descriptor, byte_size, offset=offset)
        self._address: int = np.frombuffer(self._pages, np.uint8).ctypes.data
        self.is_lost = False
        #: Return the current size of the whole file.
        self.file_size = self._pages.size

    def read(self, offset: int, target: memoryview) -> bool:
        """Fill `target` with a copy from `offset`. Return False if the mapping is lost."""
        address: int = np.frombuffer(target, np.uint8).ctypes.data
        return self._copy(address, self._address + offset, len(target))

    def write(self, offset: int, data: memoryview) -> bool:
        """Copy `data` to `offset`. Return False if the mapping is lost; a part may be written."""
        source: int = np.frombuffer(data, np.uint8).ctypes.data
        return self._copy(self._address + offset, source, len(data))

    def _copy(self, target: int, source: int, byte_size: int) -> bool:
        _install_handler()
        thread = threading.get_ident()
        _in_use[thread] = self
        try:
            ctypes.memmove(target, source, byte_size)
        finally:
            del _in_use[thread]
        # If another thread has lost the mapping, this one may have copied empty pages.
        return not self.is_lost

    def lose(self) -> bool:
        """Map empty pages in place of the file. Return False if that fails."""
        self.is_lost = True
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        size = len(self._pages)
        return bool(_mmap(self._address, size, protection, flags, -1, 0) != _FAILED)


_previous_handler: int | None = None


def _on_fault(number: int) -> None:
    mapping = _in_use.get(threading.get_ident())
    if mapping is None or not mapping.lose():
        _signal(number, _previous_handler)
        signal.raise_signal(number)


_callback = ctypes.CFUNCTYPE(None, ctypes.c_int)(_on_fault)
_HANDLER = ctypes.cast(_callback, ctypes.c_void_p).value


def _install_handler() -> None:
    """Install the SIGBUS handler. Called before each copy: a model may have replaced it."""
    global _previous_handler
    before = _signal(signal.SIGBUS, _HANDLER)
    if before != _HANDLER:
        _previous_handler = before
