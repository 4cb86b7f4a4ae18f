"""A POSIX shared memory object of a client's: read by copies, written by copies.

A client can cut its object at any moment. So nobody but the copies of this module ever touches its
pages, and a copy that finds some gone ends in an error. Small ones are the kernel's, by pread and
pwrite; large ones go through a mapping under a guard, which then takes half the time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Protocol

from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.metadata import SystemRegion
from reference_server.shared_memory.guard import GuardedMapping
from reference_server.shared_memory.input_buffers import InputBuffers

_OBJECTS = Path("/dev/shm")
#: From here on the guarded copy is the faster one (measured: docs/server.md).
_GUARDED_BYTES = 1 << 16


class Memory(Protocol):
    """The bytes of one region. Offsets and sizes have been checked. Any thread."""

    def read(self, offset: int, byte_size: int) -> memoryview:
        """A copy of those bytes, writable. Raises ServerError."""

    def write(self, offset: int, data: memoryview) -> None:
        """Put `data` there. Raises ServerError, with any part of it written."""

    def close(self) -> None:
        """Let go; to be called when nobody reads or writes."""


class SystemMemory:
    """A system region, open and mapped. Large copies of it are in `buffers`.

    Raises ServerError: INTERNAL if there is no such object, INVALID_ARG if the region is not
    within it, is empty or does not begin with a page.
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
        """A copy of those bytes, writable. Raises ServerError."""
        end = offset + byte_size
        if byte_size < _GUARDED_BYTES:
            data = bytearray(byte_size)
            if os.preadv(self._object, [data], self._region.offset + offset) != byte_size:
                raise self._refusal(end)
            return memoryview(data)
        target = self._buffers.take(byte_size)
        is_whole = self._whole().read(offset, target)
        self._check(end)  # after it: behind the end, the rest of a page can be read
        if not is_whole:
            raise self._refusal(end)
        return target

    def write(self, offset: int, data: memoryview) -> None:
        """Put `data` there. Raises ServerError, with any part of it written."""
        end = offset + len(data)
        if len(data) >= _GUARDED_BYTES:
            is_written = self._whole().write(offset, data)
            self._check(end)
        else:
            # Before it: pwrite would lengthen the object. It does if the object is cut right now,
            # as far as the client had it, which harms nobody.
            self._check(end)
            try:
                written = os.pwrite(self._object, data, self._region.offset + offset)
            except OSError:  # no memory is left for the pages of a sparse object
                written = -1
            is_written = written == len(data)
        if not is_written:
            raise self._refusal(end)

    def close(self) -> None:
        """Close the object."""
        os.close(self._object)

    def _whole(self) -> GuardedMapping:
        """The mapping, or a new one if it was lost: the client may have mended its object."""
        if self._mapping.is_lost:
            try:
                # Two threads may do this at a time: the last one's stays.
                self._mapping = _map(self._object, self._region)
            except ServerError as error:
                raise self._refusal(self._region.byte_size) from error
        return self._mapping

    def _check(self, end: int) -> None:
        """Refuse an object that does not have the region's bytes up to `end`."""
        if self._mapping.file_size() < self._region.offset + end:
            raise self._refusal(end)

    def _refusal(self, end: int) -> ServerError:
        """The error of a copy up to `end` that found no page."""
        size, needed = self._mapping.file_size(), self._region.offset + end
        found = f"its object '{self._region.key}' has {size} bytes, expected at least {needed}"
        if size >= needed:
            found = (
                f"its object '{self._region.key}' was cut while it was used, or no memory is left "
                f"for its pages in {_OBJECTS}"
            )
        return invalid_arg(f"shared memory region '{self._region.name}' cannot be used: {found}")


def _open(key: str) -> int:
    """The object's descriptor; nothing but a name directly within /dev/shm is one."""
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
        if not region.byte_size:  # which Python takes for the whole object
            raise OSError(errno.EINVAL, "nothing to map")
        return GuardedMapping(descriptor, region.byte_size, region.offset)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise invalid_arg(f"{refused}unable to process address space{reason}") from error
    except ValueError as error:  # cut since its size was read
        raise invalid_arg(refused + "invalid args") from error
