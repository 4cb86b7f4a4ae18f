"""What a file holds, as a short text: models of equal content share their weights."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from ge_runtime.errors import ArtifactFault

_Identity: TypeAlias = tuple[int, int, int, int]

_EXTERNAL: Final = b"\x0a\x08location"
"""How a .onnx file begins to say in which other file a tensor's elements are (onnx.proto3)."""


class Contents:
    """The contents of files, each read once for as long as it stays the same. Any thread."""

    def __init__(self) -> None:
        self._known: dict[_Identity, str] = {}
        self._lock = Lock()

    def of(self, path: Path) -> str:
        """The file's content; for one whose weights are in other files, of its folder as well.

        Raises ArtifactFault if it cannot be read.
        """
        try:
            identity = _identity(path)
            with self._lock:
                content = self._known.get(identity)
            if content is None:
                content = _read(path)
                with self._lock:
                    self._known[identity] = content
        except OSError as error:
            raise ArtifactFault(f"{path}: it cannot be read: {error.strerror}") from error
        return content


def _identity(path: Path) -> _Identity:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if not path.stat().st_size:
            return digest.hexdigest()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            digest.update(data)
            if path.suffix == ".onnx" and data.find(_EXTERNAL) >= 0:
                beside = sorted(other for other in path.parent.iterdir() if other.is_file())
                digest.update(repr([(str(other), _identity(other)) for other in beside]).encode())
    return digest.hexdigest()
