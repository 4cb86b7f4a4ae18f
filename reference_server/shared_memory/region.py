"""A POSIX shared memory object of a client's, mapped.

Reading never disturbs the client's bytes and never depends on what a model does with its inputs:
small parts are copied, large ones are mapped once more, copy-on-write, which costs less.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Protocol

from reference_server.core.errors import internal, invalid_arg
from reference_server.core.metadata import SystemRegion

_OBJECTS = Path("/dev/shm")
#: From here on a mapping of their own is cheaper for the bytes of an input than a copy (measured).
_MAPPED_BYTES = 1 << 19
#: Which bytes of which object: device, inode, first, behind the last. Regions of different names
#: may have some in common.
Extent = tuple[int, int, int, int]


class Memory(Protocol):
    """The bytes of one region. Offsets and sizes have been checked. Any thread."""

    def view(self, offset: int, byte_size: int) -> memoryview:
        """Those bytes, writable without effect on the region. Raises ServerError."""

    def write(self, offset: int, data: memoryview) -> None:
        """Put `data` there. Raises ServerError."""

    def extent(self, offset: int, byte_size: int) -> Extent | None:
        """What a view of those bytes may stay tied to; None if a view has bytes of its own."""

    def close(self) -> None:
        """Let go. Views that were given out stay good."""


class SystemMemory:
    """The mapping of a system region.

    Raises ServerError: INTERNAL if there is no such object, INVALID_ARG if the region is not
    within it, is empty or does not begin with a page.
    """

    def __init__(self, region: SystemRegion) -> None:
        self._region = region
        self._object = _open(region.key)
        status = os.fstat(self._object)
        self._identity = status.st_dev, status.st_ino
        try:
            self._mapping = _map(self._object, region)
        except BaseException:
            os.close(self._object)
            raise
        self._bytes = memoryview(self._mapping)

    def view(self, offset: int, byte_size: int) -> memoryview:
        """Those bytes, writable without effect on the region. Raises ServerError."""
        self._check_object()
        if byte_size >= _MAPPED_BYTES:
            with contextlib.suppress(OSError):  # such as too many open files: a copy needs none
                return self._mapped(self._region.offset + offset, byte_size)
        return memoryview(bytearray(self._bytes[offset : offset + byte_size]))

    def _mapped(self, start: int, byte_size: int) -> memoryview:
        skipped = start % mmap.ALLOCATIONGRANULARITY
        size = skipped + byte_size
        private = mmap.mmap(self._object, size, flags=mmap.MAP_PRIVATE, offset=start - skipped)
        return memoryview(private)[skipped:]

    def write(self, offset: int, data: memoryview) -> None:
        """Put `data` there. Raises ServerError."""
        self._check_object()
        self._bytes[offset : offset + len(data)] = data

    def extent(self, offset: int, byte_size: int) -> Extent:
        """Which bytes of which object those are."""
        start = self._region.offset + offset
        return *self._identity, start, start + byte_size

    def close(self) -> None:
        """Unmap, and close the object. Views that were given out stay good."""
        self._bytes.release()
        self._mapping.close()
        os.close(self._object)

    def _check_object(self) -> None:
        """Refuse an object that its client has cut: touching what is gone would end the server."""
        size = self._mapping.size()
        needed = self._region.offset + self._region.byte_size
        if size < needed:
            raise invalid_arg(
                f"shared memory region '{self._region.name}' cannot be used: its object "
                f"'{self._region.key}' has {size} bytes, expected at least {needed}"
            )


def _open(key: str) -> int:
    """The object's descriptor; nothing but a name directly within /dev/shm is one."""
    name = key.lstrip("/")
    if name and "/" not in name and "\0" not in name:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with contextlib.suppress(OSError, UnicodeError):
            return os.open(_OBJECTS / name, flags)
    raise internal(f"Unable to open shared memory region: '{key}'")


def _map(descriptor: int, region: SystemRegion) -> mmap.mmap:
    refused = f"failed to register shared memory region '{region.name}': "
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or region.offset + region.byte_size > status.st_size:
        raise invalid_arg(refused + "invalid args")
    try:
        if not region.byte_size:  # which Python takes for the whole object
            raise OSError(errno.EINVAL, "nothing to map")
        return mmap.mmap(descriptor, region.byte_size, offset=region.offset)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise invalid_arg(f"{refused}unable to process address space{reason}") from error
    except ValueError as error:  # cut since its size was read
        raise invalid_arg(refused + "invalid args") from error
