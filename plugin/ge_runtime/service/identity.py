"""The identity of files and devices across processes.

Models of equal content share their weights, whatever their paths. Equal paths are different files
where containers see different folders, and equal device numbers are different devices where
processes see different ones.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping, Sequence
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

VISIBLE_DEVICES_VARIABLES: Final[Mapping[str, str]] = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}
"""By the kind of device: what chooses and renumbers them."""


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
            identity = _stat_identity(path)
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
            raise _unreadable(path, error) from error


def file_identity(path: Path) -> list[int]:
    """Which file this process finds there: equal for two processes if it is the same one.

    Raises ArtifactFault if there is none.
    """
    try:
        return list(_stat_identity(path))
    except OSError as error:
        raise _unreadable(path, error) from error


def ensure_same_files(paths: Sequence[Path], seen: Sequence[Sequence[int]], content: str) -> None:
    """Raises ArtifactFault if another process finds other files at these paths.

    seen, content: what that process says of them. Files of equal content are as good as the same,
    but those whose weights are in other files must be the same.
    """
    # One digest for each file, joined as `ModelCache` does.
    for path, there, whole in zip(paths, seen, content.split("-"), strict=True):
        # Read only if the files differ: a large model's content takes seconds.
        if file_identity(path) != there and ContentHashes().of(path) != whole:
            raise ArtifactFault(
                f"{path}: found another file than the device service does, expected the same; one "
                "that was started in another container sees other folders, and XDG_RUNTIME_DIR can "
                "give each a service of its own"
            )


def _unreadable(path: Path, error: OSError) -> ArtifactFault:
    return ArtifactFault(f"{path}: it cannot be read: {error.strerror}")


def _stat_identity(path: Path) -> _Identity:
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
    identities = repr([(str(other), _stat_identity(other)) for other in files])
    return hashlib.sha256(identities.encode()).hexdigest()


def physical_device(device: str, environment: Mapping[str, str]) -> str:
    """The device of the machine that `device` is, as the environment calls it: "3" or "GPU-8932".

    Empty if it is none, and for the CPU.
    """
    kind, _, number = device.partition(":")
    listed = environment.get(VISIBLE_DEVICES_VARIABLES.get(kind, ""))
    if listed is None:
        return number
    there = [one.strip() for one in listed.split(",")]
    return there[int(number)] if int(number) < len(there) else ""
