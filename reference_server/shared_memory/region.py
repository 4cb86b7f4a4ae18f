"""A client's POSIX shared memory object, accessed by copies only.

A client can truncate its object at any time. Therefore only the copies of this module access its
pages, and a copy that finds pages missing fails with an error. Small copies use pread and pwrite;
large ones use a mapping with a guard, which takes half the time.
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
#: The guarded copy is faster from this size on (measured: docs/server.md).
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
        """Return a writable copy of the bytes. Raises ServerError."""
        end = offset + byte_size
        if byte_size < _GUARDED_BYTES:
            data = bytearray(byte_size)
            if os.preadv(self._object, [data], self._region.offset + offset) != byte_size:
                raise self._missing_bytes_error(end)
            return memoryview(data)
        target = self._buffers.take(byte_size)
        is_whole = self._whole().read(offset, target)
        self._check(end)  # after the copy: the last page's rest is readable
        if not is_whole:
            raise self._missing_bytes_error(end)
        return target

    def write(self, offset: int, data: memoryview) -> None:
        """Copy `data` to the region. Raises ServerError; a part may be written then."""
        end = offset + len(data)
        if len(data) >= _GUARDED_BYTES:
            is_written = self._whole().write(offset, data)
            self._check(end)
        else:
            # Before the copy, since pwrite would extend the object. If it is truncated right now,
            # pwrite extends it up to its former size, which does no harm.
            self._check(end)
            try:
                written = os.pwrite(self._object, data, self._region.offset + offset)
            except OSError:  # no memory for the pages of a sparse object
                written = -1
            is_written = written == len(data)
        if not is_written:
            raise self._missing_bytes_error(end)

    def close(self) -> None:
        """Close the object."""
        os.close(self._object)

    def _whole(self) -> GuardedMapping:
        """Return the mapping. A lost one is replaced: the client may have repaired its object."""
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
