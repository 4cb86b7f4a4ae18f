"""Memory shared between processes: an unnamed file, its header, and locks of its users.

The exporter keeps byte 0 of the file locked, and each importer byte 1; the kernel releases the
locks when a process ends, however it ends. A key names the exporter and its file, and is invalid
after the exporter has ended. A random number, which is in the key and in the header, distinguishes
an old key from a new file with the same descriptor.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_simulator.codes import Code, Refused
from ascend_simulator.memory.blocks import Bytes

KEY_BYTES: Final = 65
"""The length of a key, including the terminating null."""

MOST_IMPORTERS: Final = 256
"""The maximum number of processes that one key may allow."""

_KEY: Final = re.compile("[0-9a-f]{32}")
_HEADER_BYTES: Final = 4096
_KEPT: Final = 0  # byte that the exporter locks
_USED: Final = 1  # byte that importers lock
_HEADER: Final = np.dtype(
    [
        ("nonce", "<u8"),
        ("nbytes", "<u8"),
        ("device", "<u4"),
        ("open", "<u4"),
        ("everyone", "<u4"),
        ("pids", "<u4", (MOST_IMPORTERS,)),
    ]
)


class Segment:
    """One end of shared memory, in the process that exported or imported it.

    `content` has the bytes, [nbytes] uint8. Callers hold a lock.
    """

    def __init__(self, key: str, file: int, nbytes: int, *, is_exported: bool) -> None:
        self.key: Final = key
        self.is_exported: Final = is_exported
        """True if this is the exporter's end."""
        self._file = file
        # NumPy arrays keep the mapping alive; nothing else may close it.
        mapped = mmap.mmap(file, _HEADER_BYTES + nbytes)
        self._header = np.frombuffer(mapped, _HEADER, 1)
        self.content: Final[Bytes] = np.frombuffer(mapped, np.uint8, nbytes, _HEADER_BYTES)

    @property
    def device(self) -> int:
        """Physical id of the device that has the memory."""
        return int(self._header["device"][0])

    @property
    def is_kept(self) -> bool:
        """True if the exporter exists and has not closed the key. Takes about a microsecond."""
        if self.is_exported or self._file < 0:
            return self._file >= 0
        return bool(self._header["open"][0]) and not _lock(self._file, fcntl.F_RDLCK, _KEPT)

    @property
    def is_imported(self) -> bool:
        """True if another process imports the segment. Used by the exporter."""
        if not _lock(self._file, fcntl.F_WRLCK, _USED):
            return True
        _lock(self._file, fcntl.F_UNLCK, _USED)
        return False

    def allow(self, pids: Sequence[int]) -> None:
        """Allow these processes to import the segment. Raises ValueError if the list is full."""
        allowed = self._header["pids"][0]
        free = np.flatnonzero(allowed == 0)
        if len(pids) > len(free):
            raise ValueError(f"found {len(pids)} process(es), expected at most {len(free)}")
        allowed[free[: len(pids)]] = pids

    def allows(self, pid: int) -> bool:
        """Return whether the process may import the segment."""
        return bool(self._header["everyone"][0]) or pid in self._header["pids"][0]

    def close(self) -> None:
        """Close this end; references to `content` keep the bytes. Safe to call twice."""
        if self._file < 0:
            return
        if self.is_exported:
            self._header["open"] = 0
        # The mapping has its own descriptor, which keeps the locks.
        _lock(self._file, fcntl.F_UNLCK, _KEPT if self.is_exported else _USED)
        os.close(self._file)
        self._file = -1


def export(content: Bytes, nbytes: int, device: int, *, everyone: bool) -> Segment:
    """Make a segment that begins with a copy of `content`; importers get the first `nbytes`.

    `device` is a physical id. With `everyone` any process may import the segment, else only the
    processes of `Segment.allow`.
    """
    file = os.memfd_create("ascend-simulator", os.MFD_CLOEXEC)
    os.truncate(file, _HEADER_BYTES + content.nbytes)
    _lock(file, fcntl.F_WRLCK, _KEPT)
    header = np.zeros(1, _HEADER)
    header["nonce"] = nonce = secrets.randbits(64)
    header["nbytes"], header["device"] = nbytes, device
    header["open"], header["everyone"] = 1, everyone
    os.pwrite(file, header.tobytes(), 0)
    key = f"{os.getpid():08x}{nonce:016x}{file:08x}"
    segment = Segment(key, file, content.nbytes, is_exported=True)
    segment.content[:] = content
    return segment


def open_key(key: str) -> Segment:
    """Import a segment of another process.

    Raises Refused RT_PARAM_INVALID (an inferred code) for a key of this process, an unknown or
    closed key, and a key that does not allow this process.
    """
    owner, nonce, number = _read(key)
    if owner == os.getpid():
        raise _refused(key, "is a key of this process")
    try:
        file = os.open(f"/proc/{owner}/fd/{number}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _refused(key, f"has no memory in process {owner}: {error.strerror}") from error
    try:
        nbytes = _exported_bytes(key, file, nonce)
        segment = Segment(key, file, nbytes, is_exported=False)
    except BaseException:
        os.close(file)
        raise
    _lock(file, fcntl.F_RDLCK, _USED, waits=True)  # waits for a check by the exporter
    problem = "is closed" if not segment.is_kept else ""
    if not segment.allows(os.getpid()):
        problem = f"does not allow process {os.getpid()}"
    if problem:
        segment.close()
        raise _refused(key, problem)
    return segment


def _exported_bytes(key: str, file: int, nonce: int) -> int:
    try:
        header = np.frombuffer(os.pread(file, _HEADER.itemsize, 0), _HEADER)
    except (OSError, ValueError) as error:
        raise _refused(key, "does not refer to shared memory") from error
    if header.size != 1 or int(header["nonce"][0]) != nonce:
        raise _refused(key, "refers to other memory than was exported")
    return int(header["nbytes"][0])


def _read(key: str) -> tuple[int, int, int]:
    """Return the process, the random number, and the descriptor in a key."""
    if not _KEY.fullmatch(key):
        raise _refused(key, "is not a key of ipc_mem_get_export_key")
    return int(key[:8], 16), int(key[8:24], 16), int(key[24:], 16)


def _refused(key: str, text: str) -> Refused:
    return Refused(Code.RT_PARAM_INVALID, f"ipc_mem_import_by_key: {key!r}: {text}")


def _lock(file: int, kind: int, byte: int, *, waits: bool = False) -> bool:
    """Lock or unlock one byte for this open file; return False if not possible immediately."""
    # Locks of the open file, because closing any descriptor of the file releases process locks.
    command = fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK
    try:
        fcntl.fcntl(file, command, struct.pack("hhqqi", kind, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True
