"""The content of artifacts: a hash of everything that an engine reads when it opens one.

Engines of equal content are shared, also if the paths of their files differ. A .onnx file names
external files with weights. These files belong to its content; their folders and the name of the
.onnx file do not.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from ge_runtime.engines.analysis.onnx_file import EXTERNAL_DATA, KEY, MESSAGES, VALUE
from ge_runtime.engines.analysis.protobuf import GROUPS, LENGTH_DELIMITED, field_span
from ge_runtime.errors import ArtifactFault

Identity: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, modification time and status change time of a file."""

_PART_BYTES: Final = 2**20
_MOST_KNOWN: Final = 4096
"""Maximum number of cached hashes; when it is reached, the cache is cleared."""
_SETTLED_NS: Final = 3 * 10**9
"""A change that is this old has another time than any later change: FAT rounds to 2 seconds."""

_LOCATION: Final = b"location"
"""The key of an external file's path in TensorProto.external_data (onnx.proto3)."""


class ContentHashes:
    """A cache of content hashes. A file is read again only when it has changed. Thread-safe."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        """Initialize an empty cache; `clock` returns nanoseconds since the epoch."""
        self._clock = clock
        self._known: dict[Identity, tuple[str, tuple[str, ...]]] = {}
        self._lock = Lock()

    def of(self, path: Path, *others: Path) -> str:
        """Return the hash of a file, of the external files that it names, and of other files.

        Raises:
            ArtifactFault: A file cannot be read. An external file that is missing is no fault: the
                engine reports it, if it reads it.
        """
        digest, locations = self._read(path)
        parts = [digest]
        for location in locations:
            external = _external(path, location)
            parts.append("none" if external is None else self._read(external)[0])
        parts += [self._read(other)[0] for other in others]
        return digest if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def files(self, path: Path) -> list[Path]:
        """Return the paths of a file and of the external files that it names. Raises as `of`."""
        return [path, *(path.parent / location for location in self._read(path)[1])]

    def _read(self, path: Path) -> tuple[str, tuple[str, ...]]:
        """Return a file's digest, and the locations of the external files that it names."""
        try:
            identity = stat_identity(path)
            with self._lock:
                known = self._known.get(identity)
            if known is not None:
                return known
            # Determined before the file is read, as a change after this gets a later time.
            settled = self._clock() - max(identity[3:]) > _SETTLED_NS
            known = _digest_and_locations(path)
        except OSError as error:
            raise unreadable(path, error) from error
        if settled:
            with self._lock:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[identity] = known
        return known


def unreadable(path: Path, error: OSError) -> ArtifactFault:
    """Return the fault of a file that cannot be read."""
    return ArtifactFault(f"{path}: cannot be read: {error.strerror}")


def stat_identity(path: Path) -> Identity:
    """Return the identity of a file. It changes when the file is replaced or written.

    Raises:
        OSError: The file does not exist, or cannot be accessed.
        ArtifactFault: It is not a regular file. Reading a FIFO or device may block or never end.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ArtifactFault(f"{path}: found no regular file, expected one")
    # With the status change time: tools that copy set the modification time, but cannot set it.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _external(path: Path, location: str) -> Path | None:
    """Return the path of an external file of `path`; None if it is not a regular file."""
    # As in onnxruntime: beside the path as given, even if the path is a link. Some versions read
    # absolute paths and paths out of the folder; all other versions refuse the graph.
    external = path.parent / location
    try:
        return external if external.is_file() else None
    except (OSError, ValueError):  # e.g. a name that is too long, or has a null character
        return None


def _digest_and_locations(path: Path) -> tuple[str, tuple[str, ...]]:
    # Read, not mapped: if a mapped file is truncated, the process is killed (SIGBUS).
    digest = hashlib.sha256()
    names_files, seam = False, b""
    with path.open("rb", buffering=0) as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
            # The key may be split between two parts. Without it, no external file is named.
            names_files = names_files or _LOCATION in seam + part
            seam = part[-len(_LOCATION) :]
        locations = sorted(_Locations(file.fileno()).find()) if names_files else ()
    return digest.hexdigest(), tuple(locations)


class _Locations:
    """Finds the external files that a .onnx file names, and reads no weights."""

    _WINDOW: Final = 2**16
    _HEADER: Final = 20
    """Maximum bytes of a field's key and length, two varints."""
    _DEEPEST: Final = 100
    """Maximum depth of messages, as in protobuf, which refuses deeper messages."""
    _LONGEST: Final = 2**15
    """Maximum bytes of a location; Linux allows 4,096."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._at = 0
        self._window = b""
        self._found: set[str] = set()

    def find(self) -> set[str]:
        """Return the locations; of an invalid .onnx file, the locations up to the fault."""
        # Another format, or a damaged file, which onnxruntime cannot open either.
        with suppress(ValueError, IndexError):
            self._walk("model", 0, os.fstat(self._descriptor).st_size, 0)
        return self._found

    def _walk(self, kind: str, start: int, end: int, depth: int) -> None:
        if depth > self._DEEPEST:
            raise ValueError("found messages that are nested too deeply")
        inner = MESSAGES.get(kind, {})
        for number, begin, stop in self._fields(start, end):
            if number in inner:
                self._walk(inner[number], begin, stop, depth + 1)
            elif kind == "tensor" and number == EXTERNAL_DATA:
                entry = dict(self._texts(begin, stop))
                if entry.get(KEY) == _LOCATION:
                    self._found.add(os.fsdecode(entry.get(VALUE, b"")))

    def _texts(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for number, begin, stop in self._fields(start, end):
            if stop - begin <= self._LONGEST:
                yield number, os.pread(self._descriptor, stop - begin, begin)

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number, start and end of each field with a length, outside of groups."""
        groups = 0
        while start < end:
            header = self._bytes(start, min(self._HEADER, end - start))
            number, wire_type, begin, stop = field_span(header, 0)
            begin, start = start + begin, start + stop
            groups += GROUPS.get(wire_type, 0)
            if start > end or groups < 0:
                raise ValueError("found a truncated field")
            if wire_type == LENGTH_DELIMITED and not groups:
                yield number, begin, start

    def _bytes(self, start: int, count: int) -> bytes:
        offset = start - self._at
        if not 0 <= offset <= len(self._window) - count:
            self._at, offset = start, 0
            self._window = os.pread(self._descriptor, self._WINDOW, start)
        return self._window[offset : offset + count]
