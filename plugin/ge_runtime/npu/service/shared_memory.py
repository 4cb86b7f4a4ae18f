"""Memory shared by a client and the device service: files without a name, of sealed sizes.

The client makes one file for each buffer and sends its descriptor; both map it. Sizes are sealed,
since the two do not trust each other: whoever shrank a file would kill who reads it (SIGBUS). With
the last of the two processes it is gone, however they end.
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
"""Of one client, which has some for each engine. Each takes a descriptor of the service."""

ALIGNMENT: Final = 64
"""Where tensors may begin in an arena: what planned memory keeps to, and engines rely on."""
_MOST_SPARE: Final = ALIGNMENT
"""Bytes beyond its own that a tensor takes, for where it may begin."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""Of the size alone: both sides write."""
_NO_MORE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
"""What a process gets that has all it may have."""

_OVERCOMMIT: Final = Path("/proc/sys/vm/overcommit_memory")
_NEVER: Final = "2"


# ------------------------------------------------------------------------------- sealed files


def sealed_file(name: str, nbytes: int) -> int:
    """The descriptor of a new file in memory that keeps this size for ever. Raises OSError.

    It has no name anywhere, and is gone with the last process that has it. `name` is for people
    who look into /proc. The kernel gives pages as they are written.
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
    """The first `nbytes` (at least 1) of a file that somebody else made; the descriptor stays open.

    Raises ProtocolError unless its size is sealed: otherwise its maker could take pages away from
    under whoever reads them, who would be killed for it, as for a huge page that is not there any
    more. Raises MemoryError if no more can be mapped, or pages are short where the kernel gives
    none later. written: its maker, who is trusted, has written all of it: the pages are there.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        if seals & _SEALS != _SEALS or not 0 < nbytes <= size:
            raise ProtocolError(
                f"found a file of {size} bytes with seals {seals}, expected {nbytes}"
            )
        page_size = os.fstatvfs(descriptor).f_bsize
        if page_size != mmap.PAGESIZE:
            raise ProtocolError(
                f"found a file with pages of {page_size} bytes, expected {mmap.PAGESIZE}"
            )
        memory = mmap.mmap(descriptor, nbytes)
        # All pages now, while their lack is an error that can be answered.
        if not written and _never_overcommits():
            os.posix_fallocate(descriptor, 0, nbytes)
        return memory
    except (OSError, OverflowError) as error:  # no file in memory, or sealed against writing
        if isinstance(error, OSError) and error.errno in _NO_MORE:
            raise MemoryError(str(error)) from None
        raise ProtocolError(f"found a descriptor that cannot be mapped: {error}") from None


def _never_overcommits() -> bool:
    """Whether the kernel accounts for all memory: then it kills (SIGBUS) for a page too many."""
    try:
        return _OVERCOMMIT.read_text().strip() == _NEVER
    except OSError:
        return False


def message_file(body: bytes) -> int:
    """The descriptor of a file that holds a message. Raises OutOfMemory."""
    try:
        file = sealed_file("message", len(body))
        try:
            os.pwrite(file, body, 0)
        except BaseException:
            os.close(file)
            raise
    except OSError as error:
        raise OutOfMemory(f"no file for a message of {len(body):,} bytes: {error}") from error
    return file


def read_message_file(descriptor: int) -> bytes:
    """The message that a file holds. Raises ProtocolError, and MemoryError as `map_sealed`."""
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
    """One file of a client."""

    number: int
    descriptor: int
    start: int
    """Its address here."""
    nbytes: int


class Announcer(Protocol):
    """Tells the device service which files there are."""

    def announce(self, file: SharedFile) -> None:
        """The service is to map a file. Raises MemoryError if the device cannot reach so much."""

    def withdraw(self, number: int) -> None:
        """The service is to let go of the file of this number."""


class SharedMemory(Device[NDArray[np.uint8]]):
    """Buffers are uint8 arrays [nbytes], from a page on, in files that the device service maps."""

    kind: ClassVar[str] = "shared"

    def __init__(self, name: str, announcer: Announcer) -> None:
        super().__init__(name, None)
        self._announcer = announcer
        self._by_address: list[SharedFile] = []  # sorted; replaced, never changed, so read unlocked
        self._addresses: list[int] = []
        self._numbers = 0

    @property
    def shared(self) -> tuple[SharedFile, ...]:
        """All files there are now."""
        return tuple(self._by_address)

    def locate(self, array: Array) -> BufferReference | None:
        """Where an array lies whole and in one piece; None if that is no file of these."""
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
            # Before it is announced: a service that comes meanwhile is told of all in the list.
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
        """The last view of the bytes here gives them back; the service lets go of them now."""
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
    """One buffer, for one execution at a time. Not thread-safe."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._buffer: Buffer[NDArray[np.uint8]] | None = None

    def reserve(self, nbytes: int, tensors: int) -> None:
        """Have room for so many tensors of so many bytes in all. Raises OutOfMemory."""
        nbytes += tensors * _MOST_SPARE
        if self._buffer is not None:
            if nbytes <= self._buffer.nbytes:
                return
            buffer, self._buffer = self._buffer, None
            buffer.free()
        self._buffer = self._memory.allocate("staging", nbytes)

    def staged(self, arrays: Sequence[Array]) -> list[Array]:
        """For each array itself, if the service sees it; else one like it that the service sees.

        The others are valid until the next call; what they contain is undefined.
        Raises OutOfMemory.
        """
        hidden = [self._memory.locate(array) is None for array in arrays]
        nbytes = sum(array.nbytes for array in compress(arrays, hidden))
        if self._buffer is None or self._buffer.nbytes < nbytes + sum(hidden) * _MOST_SPARE:
            self.reserve(1 << nbytes.bit_length(), sum(hidden))
        assert self._buffer is not None, "it has just been reserved"
        arena = Arena(self._buffer.memory, "staging")
        return [
            arena.carve(array.dtype, array.shape) if is_hidden else array
            for array, is_hidden in zip(arrays, hidden, strict=True)
        ]


# -------------------------------------------------------------------------- the service's side


class MappedArenas:
    """A client's files as the device service sees them. Not thread-safe."""

    def __init__(
        self,
        register: Callable[[NDArray[np.uint8]], None],
        unregister: Callable[[NDArray[np.uint8]], None],
    ) -> None:
        """register, unregister: make the device reach the memory, and have it forget it again."""
        self._register = register
        self._unregister = unregister
        self._arenas: dict[int, NDArray[np.uint8]] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of those there are."""
        return tuple(self._arenas)

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        return sum(arena.nbytes for arena in tuple(self._arenas.values()))

    def add(self, number: int, descriptor: int, nbytes: int) -> None:
        """Map one more. Raises ProtocolError, and what the device says if it cannot reach it."""
        if len(self._arenas) >= MOST_ARENAS:
            raise ProtocolError(f"found {MOST_ARENAS} arenas, expected no more")
        if number in self._arenas or not 0 <= number < NOWHERE:
            raise ProtocolError(f"found arena {number} a second time, expected a number of its own")
        memory = np.frombuffer(map_sealed(descriptor, nbytes), np.uint8)
        self._register(memory)
        self._arenas[number] = memory

    def remove(self, number: int) -> None:
        """Let go of one. Raises ProtocolError if it is not there, and what the device says.

        It is gone from here even if the device does not let go of it.
        """
        memory = self._arenas.pop(number, None)
        if memory is None:
            raise ProtocolError(f"found arena {number}, expected one that was announced")
        self._unregister(memory)

    def view(self, buffer: BufferReference, dtype: np.dtype[np.generic]) -> Array:
        """The tensor that is meant. Raises ProtocolError unless it lies whole within an arena."""
        number, offset, shape = buffer
        # Python's integers: a product of NumPy's could overflow, and pass the test below.
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        if not nbytes:
            try:
                return np.empty(shape, dtype)
            except ValueError as error:  # its other sizes are beyond all bounds
                raise ProtocolError(f"found shape {list(shape)}: {error}") from None
        memory = self._arenas.get(number)
        if memory is None:
            raise ProtocolError(f"found arena {number}, expected one that was announced")
        # Offsets and sizes are the client's word: nothing of it is believed.
        if offset % ALIGNMENT or offset + nbytes > len(memory):
            raise ProtocolError(
                f"found a tensor of {nbytes} bytes from {offset} on, expected one within the "
                f"{len(memory)} of arena {number}, from a multiple of {ALIGNMENT} on"
            )
        return memory[offset : offset + nbytes].view(dtype).reshape(shape)
