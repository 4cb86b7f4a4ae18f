"""A client's POSIX shared memory object, accessed by copies only.

A client can truncate its object at any time. Therefore only the copies of this module access its
pages, and a copy that finds pages missing fails with an error. Small copies use pread and pwrite;
large copies use a guarded mapping, which takes half the time, and reused buffers.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import stat
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.metadata import SystemRegion

_OBJECTS = Path("/dev/shm")
#: The guarded copy is faster from this size on (measured: docs/results/memory.md).
_GUARDED_BYTES = 1 << 16


class Memory(Protocol):
    """The bytes of one region. Offsets and sizes are already checked. Thread-safe."""

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Return a writable copy of the bytes. Raises ServerError."""

    def write(self, offset: int, data: memoryview) -> None:
        """Copy `data` to the region. Raises ServerError; a part may be written then."""

    def close(self) -> None:
        """Close the region. Must not be called while another thread reads or writes."""


class SystemMemory:
    """A system region, opened and mapped. Large copies of it are in `buffers`.

    Raises:
        ServerError: INTERNAL if there is no such object; INVALID_ARG if the region exceeds the
            object, is empty, or does not start at a page.
    """

    def __init__(self, region: SystemRegion, buffers: InputBuffers) -> None:
        self._region = region
        self._buffers = buffers
        self._object = _open(region.key)
        try:
            self._mapping = _map(self._object, region)
        except BaseException:
            os.close(self._object)
            raise

    def read(self, offset: int, byte_size: int) -> memoryview:
        end = offset + byte_size
        if byte_size < _GUARDED_BYTES:
            data = bytearray(byte_size)
            if os.preadv(self._object, [data], self._region.offset + offset) != byte_size:
                raise self._missing_bytes_error(end)
            return memoryview(data)
        target = self._buffers.take(byte_size)
        is_whole = self._whole().read(offset, target)
        self._check(end)  # after the copy: the rest of the last page can be read
        if not is_whole:
            raise self._missing_bytes_error(end)
        return target

    def write(self, offset: int, data: memoryview) -> None:
        end = offset + len(data)
        if len(data) >= _GUARDED_BYTES:
            is_written = self._whole().write(offset, data)
            self._check(end)
        else:
            # Before the copy, since pwrite would extend the object. If the object is truncated at
            # this moment, pwrite extends it up to its former size, which does no harm.
            self._check(end)
            try:
                written = os.pwrite(self._object, data, self._region.offset + offset)
            except OSError:  # no memory for the pages of a sparse object
                written = -1
            is_written = written == len(data)
        if not is_written:
            raise self._missing_bytes_error(end)

    def close(self) -> None:
        os.close(self._object)

    def _whole(self) -> GuardedMapping:
        """Return the mapping. Replace a lost mapping: the client may have repaired its object."""
        if self._mapping.is_lost:
            try:
                # If two threads do this at once, the last mapping is kept.
                self._mapping = _map(self._object, self._region)
            except ServerError as error:
                raise self._missing_bytes_error(self._region.byte_size) from error
        return self._mapping

    def _check(self, end: int) -> None:
        """Raise if the object does not contain the region's bytes up to `end`."""
        if self._mapping.file_size() < self._region.offset + end:
            raise self._missing_bytes_error(end)

    def _missing_bytes_error(self, end: int) -> ServerError:
        """Return the error of a copy up to `end` that found missing pages."""
        size, needed = self._mapping.file_size(), self._region.offset + end
        found = f"its object '{self._region.key}' has {size} bytes, expected at least {needed}"
        if size >= needed:
            found = (
                f"its object '{self._region.key}' was truncated while in use, or no memory is left "
                f"for its pages in {_OBJECTS}"
            )
        return invalid_arg(f"shared memory region '{self._region.name}' cannot be used: {found}")


def _open(key: str) -> int:
    """Open the object. Only names directly within /dev/shm are valid."""
    name = key.lstrip("/")
    if name and "/" not in name and "\0" not in name:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with contextlib.suppress(OSError, UnicodeError):
            return os.open(_OBJECTS / name, flags)
    raise internal(f"Unable to open shared memory region: '{key}'")


def _map(descriptor: int, region: SystemRegion) -> GuardedMapping:
    refused = f"failed to register shared memory region '{region.name}': "
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or region.offset + region.byte_size > status.st_size:
        raise invalid_arg(refused + "invalid args")
    try:
        if not region.byte_size:  # Python would map the whole object
            raise OSError(errno.EINVAL, "nothing to map")
        return GuardedMapping(descriptor, region.byte_size, region.offset)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise invalid_arg(f"{refused}unable to process address space{reason}") from error
    except ValueError as error:  # truncated since its size was read
        raise invalid_arg(refused + "invalid args") from error


# -- copies from and to mapped files that other processes may truncate, at memcpy's speed

# Accessing a mapped page after the end of its file raises SIGBUS, which ends the process. The same
# happens when a page is written and the file system has no memory left for it. Here the copy fails
# instead.
#
# The signal is raised in `memmove`, on the thread that called it, which has released the
# interpreter's lock for the call. For the interpreter, the handler is an ordinary callback from C,
# and `memmove` holds no lock that the handler could wait for. The handler maps empty pages in place
# of the file, and the copy continues to its end. A SIGBUS from anywhere else is passed to the
# previous handler.

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
        ValueError: the file ends before the mapping.
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
        # If another thread has lost the mapping, this thread may have copied empty pages.
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


# -- buffers for copies of large inputs, reused for some time

# glibc returns large blocks to the kernel, and the pages of new blocks are faulted in one by one.
# For an input of 602 KB that costs more than the copy (measured: docs/results/memory.md).

#: Limits for idle buffers: bytes in all, and seconds for each.
_MOST_IDLE = 1 << 26
_KEPT_S = 10.0

_Bytes = npt.NDArray[np.uint8]


class _Loan(weakref.ref[_Bytes]):
    """A weak reference to a buffer's views that are in use."""

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
