"""The content of files: graphs of equal content are one, whatever their paths."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from ge_runtime.errors import ArtifactFault

_Identity: TypeAlias = tuple[int, int, int, int]

_EXTERNAL: Final = b"\x0a\x08location"
"""How a .onnx file begins to say in which other file a tensor's elements are: field 1 of a
StringStringEntryProto in TensorProto.external_data (onnx.proto3)."""
_PART_BYTES: Final = 2**20
_MOST_KNOWN: Final = 4096
"""Files whose contents are kept: beyond, models are read again."""


class ContentHashes:
    """The contents of files, each read once for as long as it stays the same. Any thread."""

    def __init__(self) -> None:
        self._known: dict[_Identity, tuple[str, bool]] = {}
        self._lock = Lock()

    def of(self, path: Path) -> str:
        """The file's content; for one whose weights are in other files, of its folder as well.

        Raises ArtifactFault if it cannot be read.
        """
        try:
            identity = stat_identity(path)
            with self._lock:
                known = self._known.get(identity)
            if known is None:
                known = _read(path)
                with self._lock:
                    if len(self._known) >= _MOST_KNOWN:
                        self._known.clear()
                    self._known[identity] = known
            content, external = known
            return f"{content}{_beside(path)}" if external else content
        except OSError as error:
            raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> ArtifactFault:
    """The fault of a file that cannot be read."""
    return ArtifactFault(f"{path}: it cannot be read: {error.strerror}")


def stat_identity(path: Path) -> _Identity:
    """Raises OSError, and ArtifactFault for what has no end, or blocks whoever opens it."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ArtifactFault(f"{path}: found no regular file, expected one")
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path) -> tuple[str, bool]:
    """The digest of a file's content, and whether some of its weights are in other files."""
    # Not mapped: a file that somebody cuts meanwhile would take the whole process with it.
    digest = hashlib.sha256()
    external, seam = False, b""
    with path.open("rb", buffering=0) as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
            # The seam, too: the words may stand across the border of two parts.
            external = external or _EXTERNAL in part or _EXTERNAL in seam + part[: len(_EXTERNAL)]
            seam = part[-len(_EXTERNAL) :]
    return digest.hexdigest(), external and path.suffix == ".onnx"


def _beside(path: Path) -> str:
    """The files in its folder, as they are now: which of them it means, only its engine knows."""
    files = sorted(other for other in path.parent.iterdir() if other.is_file())
    identities = repr([(str(other), stat_identity(other)) for other in files])
    return hashlib.sha256(identities.encode()).hexdigest()
