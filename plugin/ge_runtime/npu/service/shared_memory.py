"""Memory shared by a client and the device service: anonymous files with sealed sizes.

The client creates one file for each buffer and sends its descriptor; both processes map it. In the
service, a client's file is an arena. The size is sealed, because the processes do not trust each
other: a process that shrank a file would kill a process that reads it (SIGBUS). The file is deleted
when both processes have ended.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Buffer, Device
from ge_runtime.errors import OutOfMemory
from ge_runtime.memory.arena import Arena
from ge_runtime.npu.service.protocol import (
    MOST_LARGE_BYTES,
    NOWHERE,
    BufferReference,
    ProtocolError,
)
from ge_runtime.specs import Array

MOST_ARENAS: Final = 1024
"""Maximum number of arenas of a client; each needs a descriptor in the service."""

ALIGNMENT: Final = 64
"""Alignment of tensors in an arena, which memory plans guarantee and engines require."""
_MOST_SPARE: Final = ALIGNMENT
"""Maximum padding of a tensor for its alignment."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""Seals of the size; both sides may write."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
"""Errors of a process that has reached a resource limit."""

_OVERCOMMIT: Final = Path("/proc/sys/vm/overcommit_memory")
_NEVER: Final = "2"


# ------------------------------------------------------------------------------- sealed files


def sealed_file(name: str, nbytes: int) -> int:
    """Create an anonymous file in memory with a fixed size, and return its descriptor.

    The file is deleted with its last descriptor. `name` is visible in /proc. The kernel allocates
    pages when they are written. Raises OSError.
    """
    descriptor = os.memfd_create(f"ge_runtime {name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_sealed(descriptor: int, nbytes: int, *, written: bool = False) -> mmap.mmap:
    """Map a file of another process. The descriptor stays open.

    Args:
        descriptor: The file.
        nbytes: Number of bytes to map, at least 1.
        written: Whether a trusted process has written all bytes, so that all pages exist.

    Raises:
        ProtocolError: The file is too small, its size is not sealed, or it has huge pages. The
            other process could remove pages of such a file, and reading them would kill this
            process.
        MemoryError: A resource limit is reached, or there are not enough pages and the kernel does
            not overcommit.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        if seals & _SEALS != _SEALS or not 0 < nbytes <= size:
            raise ProtocolError(
                f"found a file of {size} bytes with seals {seals}, expected at least {nbytes} "
                f"bytes and the seals {_SEALS}"
            )
        page_size = os.fstatvfs(descriptor).f_bsize
        if page_size != mmap.PAGESIZE:
            raise ProtocolError(
                f"found a file with pages of {page_size} bytes, expected {mmap.PAGESIZE}"
            )
        memory = mmap.mmap(descriptor, nbytes)
        # Allocate all pages now, because a missing page would later kill the process.
        if not written and _never_overcommits():
            os.posix_fallocate(descriptor, 0, nbytes)
        return memory
    except (OSError, OverflowError) as error:  # e.g. not a memfd, or sealed against writing
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            raise MemoryError(str(error)) from None
        raise ProtocolError(f"found a descriptor that cannot be mapped: {error}") from None


def _never_overcommits() -> bool:
    """Return whether the kernel does not overcommit, so that missing pages raise SIGBUS."""
    try:
        return _OVERCOMMIT.read_text().strip() == _NEVER
    except OSError:
        return False


def message_file(body: bytes) -> int:
    """Create a file with a message, and return its descriptor. Raises OutOfMemory."""
    try:
        file = sealed_file("message", len(body))
        try:
            os.pwrite(file, body, 0)
        except BaseException:
            os.close(file)
            raise
    except OSError as error:
        raise OutOfMemory(
            f"a file for a message of {len(body):,} bytes cannot be created: {error}"
        ) from error
    return file


def read_message_file(descriptor: int) -> bytes:
    """Return the message in a file. Raises ProtocolError, and MemoryError like `map_sealed`."""
    try:
        size = os.fstat(descriptor).st_size
    except OSError as error:
        raise ProtocolError(f"found a message that cannot be read: {error}") from None
    if size > MOST_LARGE_BYTES:
        raise ProtocolError(f"found a message of {size} bytes, expected at most {MOST_LARGE_BYTES}")
    with map_sealed(descriptor, size) as data:
        return data[:]


# --------------------------------------------------------------------------- the client's side


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file of a client."""

    number: int
    descriptor: int
    start: int
    """The address in the client's process."""
    nbytes: int


class Announcer(Protocol):
    """Announces files to the device service."""

    def announce(self, file: SharedFile) -> None:
        """Let the service map a file. Raises MemoryError if the device cannot access it."""

    def withdraw(self, number: int) -> None:
        """Let the service unmap the file with this number."""


class SharedMemory(Device[NDArray[np.uint8]]):
    """Memory in files that the device service maps.

    Buffers are uint8 arrays [nbytes] that start at page boundaries.
    """

    kind: ClassVar[str] = "shared"

    def __init__(self, name: str, announcer: Announcer) -> None:
        super().__init__(name, None)
        self._announcer = announcer
        # Sorted. Read without a lock: the list is replaced, and never modified.
        self._by_address: list[SharedFile] = []
        self._addresses: list[int] = []
        self._numbers = 0

    @property
    def shared(self) -> tuple[SharedFile, ...]:
        """All current files."""
        return tuple(self._by_address)

    def locate(self, array: Array) -> BufferReference | None:
        """Return the position of a C-contiguous array; None if it is not in shared memory."""
        if not array.nbytes:
            return NOWHERE, 0, array.shape
        if not array.flags.c_contiguous:
            return None
        address: int = array.__array_interface__["data"][0]
        files = self._by_address
        index = bisect_right(self._addresses, address) - 1
        if 0 <= index < len(files):
            shared = files[index]
            offset = address - shared.start
            if 0 <= offset <= shared.nbytes - array.nbytes and not offset % ALIGNMENT:
                return shared.number, offset, array.shape
        return None

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        size = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        try:
            descriptor = sealed_file("arena", size)
        except (OSError, OverflowError) as error:
            raise MemoryError(str(error)) from error
        try:
            memory = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
            self._numbers += 1
            shared = SharedFile(self._numbers, descriptor, memory.ctypes.data, size)
            # Added before the announcement, because a service that starts now receives this list.
            self._keep([*self._by_address, shared])
            try:
                self._announcer.announce(shared)
            except BaseException:
                self._keep([other for other in self._by_address if other is not shared])
                raise
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise MemoryError(str(error)) from error
        except BaseException:
            os.close(descriptor)
            raise
        return memory[:nbytes]

    def _release(self, memory: NDArray[np.uint8]) -> None:
        """Withdraw the file; its memory is freed with the last view."""
        address = memory.ctypes.data
        (shared,) = (one for one in self._by_address if one.start == address)
        self._keep([other for other in self._by_address if other is not shared])
        self._announcer.withdraw(shared.number)
        os.close(shared.descriptor)

    def _keep(self, files: list[SharedFile]) -> None:
        files.sort(key=lambda shared: shared.start)
        self._by_address = files
        self._addresses = [shared.start for shared in files]


class StagingBuffer:
    """A buffer for copies of arrays that are not in shared memory. Not thread-safe."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._buffer: Buffer[NDArray[np.uint8]] | None = None

    def reserve(self, nbytes: int, tensors: int) -> None:
        """Allocate the buffer for `tensors` tensors of `nbytes` in total. Raises OutOfMemory."""
        nbytes += tensors * _MOST_SPARE
        if self._buffer is not None:
            if nbytes <= self._buffer.nbytes:
                return
            buffer, self._buffer = self._buffer, None
            buffer.free()
        self._buffer = self._memory.allocate("staging", nbytes)

    def staged(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the arrays, with an array in the buffer for each that is not in shared memory.

        Arrays in the buffer have undefined content and are valid until the next call. Raises
        OutOfMemory.
        """
        hidden = [self._memory.locate(array) is None for array in arrays]
        nbytes = sum(array.nbytes for array in compress(arrays, hidden))
        if self._buffer is None or self._buffer.nbytes < nbytes + sum(hidden) * _MOST_SPARE:
            self.reserve(1 << nbytes.bit_length(), sum(hidden))
        assert self._buffer is not None, "`reserve` allocates it"
        arena = Arena(self._buffer.memory, "staging")
        return [
            arena.carve(array.dtype, array.shape) if is_hidden else array
            for array, is_hidden in zip(arrays, hidden, strict=True)
        ]


# -------------------------------------------------------------------------- the service's side


class MappedArenas:
    """A client's files in the device service. Not thread-safe."""

    def __init__(
        self,
        register: Callable[[NDArray[np.uint8]], None],
        unregister: Callable[[NDArray[np.uint8]], None],
    ) -> None:
        """Initialize without files; the functions are those of `DeviceBackend`."""
        self._register = register
        self._unregister = unregister
        self._arenas: dict[int, NDArray[np.uint8]] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the arenas."""
        return tuple(self._arenas)

    @property
    def nbytes(self) -> int:
        """The total size of the arenas."""
        return sum(arena.nbytes for arena in tuple(self._arenas.values()))

    def add(self, number: int, descriptor: int, nbytes: int) -> None:
        """Map and register a file. Raises ProtocolError, and the device's error."""
        if len(self._arenas) >= MOST_ARENAS:
            raise ProtocolError(f"found {MOST_ARENAS} arenas, expected no more")
        if number in self._arenas or not 0 <= number < NOWHERE:
            raise ProtocolError(f"found arena number {number}, expected a new one")
        memory = np.frombuffer(map_sealed(descriptor, nbytes), np.uint8)
        self._register(memory)
        self._arenas[number] = memory

    def remove(self, number: int) -> None:
        """Unmap a file. Raises ProtocolError if it is unknown, and the device's error.

        The arena is removed even if the device cannot unregister it.
        """
        memory = self._arenas.pop(number, None)
        if memory is None:
            raise ProtocolError(f"found arena {number}, expected one that was announced")
        self._unregister(memory)

    def view(self, buffer: BufferReference, dtype: np.dtype[np.generic]) -> Array:
        """Return the tensor at a position. Raises ProtocolError if it is not within an arena."""
        number, offset, shape = buffer
        # Python integers, because a NumPy product could overflow and pass the check below.
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        if not nbytes:
            try:
                return np.empty(shape, dtype)
            except ValueError as error:  # the other sizes are too large
                raise ProtocolError(f"found shape {list(shape)}: {error}") from None
        memory = self._arenas.get(number)
        if memory is None:
            raise ProtocolError(f"found arena {number}, expected one that was announced")
        # Offsets and sizes come from the client and are not trusted.
        if offset % ALIGNMENT or offset + nbytes > len(memory):
            raise ProtocolError(
                f"found a tensor of {nbytes} bytes at offset {offset}, expected one within the "
                f"{len(memory)} bytes of arena {number}, at a multiple of {ALIGNMENT}"
            )
        return memory[offset : offset + nbytes].view(dtype).reshape(shape)
