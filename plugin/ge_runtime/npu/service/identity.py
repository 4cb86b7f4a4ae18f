"""The identity of files and devices across processes.

Models of equal content share their weights, even if their paths differ. Equal paths may be
different files in different containers, and equal device numbers may be different devices in
different processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from ge_runtime.engines.content import ContentHashes, stat_identity
from ge_runtime.errors import ArtifactFault

FileIdentity: TypeAlias = tuple[str, list[int] | None]
"""The path of a file, and its `stat_identity`; None if it is missing."""

VISIBLE_DEVICES_VARIABLES: Final[Mapping[str, str]] = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}
"""Device type: environment variable that selects and renumbers its devices."""


def file_identity(path: Path) -> FileIdentity:
    """Return the path of a file, and its identity or None if it is missing.

    They are equal in all processes that see the same file. Raises ArtifactFault if it cannot be
    accessed.
    """
    try:
        return str(path), list(stat_identity(path))
    except FileNotFoundError:
        return str(path), None
    except (OSError, ValueError) as error:
        raise ArtifactFault(f"{path}: cannot be read: {error}") from error


def ensure_same_files(
    paths: Sequence[Path], seen: Sequence[Sequence[FileIdentity]], content: str
) -> None:
    """Raise ArtifactFault if another process sees other files at these paths.

    Files with equal content are accepted.

    Args:
        paths: The files.
        seen: The identities, in the other process, of each file and of its external files.
        content: The files' hashes in the other process, joined by "-".
    """
    # `ModelCache` joins the hashes.
    for path, files, digest in zip(paths, seen, content.split("-"), strict=True):
        same = all(file_identity(Path(name)) == (name, identity) for name, identity in files)
        # The content is only read if the identities differ, as it may take seconds.
        if not same and ContentHashes().of(path) != digest:
            raise ArtifactFault(
                f"{path}: found another file than the device service does, expected the same; a "
                "service in another container sees other folders: set XDG_RUNTIME_DIR so that "
                "each container has its own service"
            )


def physical_device(device: str, environment: Mapping[str, str]) -> str:
    """Return the name of a device on the machine: its number, or a name such as "GPU-8932".

    Empty for the CPU, and for a device that is not visible.
    """
    kind, _, number = device.partition(":")
    listed = environment.get(VISIBLE_DEVICES_VARIABLES.get(kind, ""))
    if listed is None:
        return number
    visible = [one.strip() for one in listed.split(",")]
    return visible[int(number)] if int(number) < len(visible) else ""
