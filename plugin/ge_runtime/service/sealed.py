"""Files in memory whose sizes are sealed: what processes share that do not trust each other."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Final

from ge_runtime.errors import OutOfMemory
from ge_runtime.service.protocol import MOST_LARGE_BYTES, Broken

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_NO_MORE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
"""What a process gets that has all it may have."""

_OVERCOMMIT: Final = Path("/proc/sys/vm/overcommit_memory")
_NEVER: Final = "2"


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

    Raises Broken unless its size is sealed: otherwise its maker could take pages away from under
    whoever reads them, who would be killed for it. Raises MemoryError if no more can be mapped, or
    pages are short where the kernel gives none later. written: its maker, who is trusted, has
    written all of it: the pages are there.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        if seals & _SEALS != _SEALS or not 0 < nbytes <= size:
            raise Broken(f"found a file of {size} bytes with seals {seals}, expected {nbytes}")
        memory = mmap.mmap(descriptor, nbytes)
        if not written and _promises_only_what_is_there():
            os.posix_fallocate(descriptor, 0, nbytes)
        return memory
    except (OSError, OverflowError) as error:  # no file in memory, or sealed against writing
        if isinstance(error, OSError) and error.errno in _NO_MORE:
            raise MemoryError(str(error)) from None
        raise Broken(f"found a descriptor that cannot be mapped: {error}") from None


def _promises_only_what_is_there() -> bool:
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


def message_in(descriptor: int) -> bytes:
    """The message that a file holds. Raises Broken, and MemoryError as `map_sealed`."""
    try:
        size = os.fstat(descriptor).st_size
    except OSError as error:
        raise Broken(f"found a message that cannot be read: {error}") from None
    if size > MOST_LARGE_BYTES:
        raise Broken(f"found a message of {size} bytes, expected at most {MOST_LARGE_BYTES}")
    with map_sealed(descriptor, size) as data:
        return data[:]
