"""Memory that a client and the device service both see: files without a name, of sealed sizes.

The client makes one file for each buffer and sends its descriptor; both map it. With the last of
the two processes it is gone, however they end.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device
from ge_runtime.service.executions import NOWHERE, Spot
from ge_runtime.service.protocol import Broken
from ge_runtime.service.sealed import map_sealed, sealed_file
from ge_runtime.specs import Array

MOST_ARENAS: Final = 1024
"""Of one client, which has some for each engine. Each takes a descriptor of the service."""

ALIGNMENT: Final = 64
"""Where tensors may begin in an arena: what planned memory keeps to, and engines rely on."""


@dataclass(frozen=True, slots=True)
class Shared:
    """One file of a client."""

    number: int
    descriptor: int
    start: int
    """Its address here."""
    nbytes: int


class Announce(Protocol):
    """Whoever tells the device service."""

    def arena(self, shared: Shared) -> None:
        """There is one more. Raises MemoryError if the device cannot reach so much."""

    def forget(self, number: int) -> None:
        """There is one less."""


class SharedMemory(Device[NDArray[np.uint8]]):
    """Buffers are uint8 arrays [nbytes], from a page on, in files that the device service maps."""

    kind: ClassVar[str] = "shared"

    def __init__(self, name: str, announce: Announce) -> None:
        super().__init__(name, None)
        self._announce = announce
        self._by_address: list[Shared] = []  # sorted; replaced, never changed, so read unlocked
        self._addresses: list[int] = []
        self._numbers = 0

    @property
    def shared(self) -> tuple[Shared, ...]:
        """All files there are now."""
        return tuple(self._by_address)

    def spot(self, array: Array) -> Spot | None:
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
            shared = Shared(self._numbers, descriptor, memory.ctypes.data, size)
            self._keep([*self._by_address, shared])
            try:
                self._announce.arena(shared)
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
        self._announce.forget(shared.number)
        os.close(shared.descriptor)

    def _keep(self, files: list[Shared]) -> None:
        files.sort(key=lambda shared: shared.start)
        self._by_address = files
        self._addresses = [shared.start for shared in files]


class Arenas:
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
        """Map one more. Raises Broken, and what the device says if it cannot reach it."""
        if len(self._arenas) >= MOST_ARENAS:
            raise Broken(f"found {MOST_ARENAS} arenas, expected no more")
        if number in self._arenas or not 0 <= number < NOWHERE:
            raise Broken(f"found arena {number} a second time, expected a number of its own")
        memory = np.frombuffer(map_sealed(descriptor, nbytes), np.uint8)
        self._register(memory)
        self._arenas[number] = memory

    def remove(self, number: int) -> None:
        """Let go of one. Raises Broken if it is not there, and what the device says.

        It is gone from here even if the device does not let go of it.
        """
        memory = self._arenas.pop(number, None)
        if memory is None:
            raise Broken(f"found arena {number}, expected one that was announced")
        self._unregister(memory)

    def view(self, spot: Spot, dtype: np.dtype[np.generic]) -> Array:
        """The tensor at a spot. Raises Broken unless it lies whole within an arena."""
        number, offset, shape = spot
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        if not nbytes:
            try:
                return np.empty(shape, dtype)
            except ValueError as error:  # its other sizes are beyond all bounds
                raise Broken(f"found shape {list(shape)}: {error}") from None
        memory = self._arenas.get(number)
        if memory is None:
            raise Broken(f"found arena {number}, expected one that was announced")
        if offset % ALIGNMENT or offset + nbytes > len(memory):
            raise Broken(
                f"found a tensor of {nbytes} bytes from {offset} on, expected one within the "
                f"{len(memory)} of arena {number}, from a multiple of {ALIGNMENT} on"
            )
        return memory[offset : offset + nbytes].view(dtype).reshape(shape)
