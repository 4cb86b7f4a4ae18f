"""The identity of files and devices across processes.

Models of equal content share their weights, even if their paths differ. Equal paths may be
different files in different containers, and equal device numbers may be different devices in
different processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ge_runtime.engines.artifact import ContentHashes, stat_identity, unreadable
from ge_runtime.errors import ArtifactFault

VISIBLE_DEVICES_VARIABLES: Final[Mapping[str, str]] = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}
"""Device type: environment variable that selects and renumbers its devices."""


def file_identity(path: Path) -> list[int]:
    """Return the identity of a file, which is equal in all processes that see the same file.

    Raises ArtifactFault if there is no file.
    """
    try:
        return list(stat_identity(path))
    except OSError as error:
        raise unreadable(path, error) from error


def ensure_same_files(paths: Sequence[Path], seen: Sequence[Sequence[int]], content: str) -> None:
    """Raise ArtifactFault if another process sees other files at these paths.

    Files with equal content are accepted, unless their weights are in external files.

    Args:
        paths: The files.
        seen: The files' identities in the other process.
        content: The files' hashes in the other process, joined by "-".
    """
    # `ModelCache` joins the hashes.
    for path, identity, digest in zip(paths, seen, content.split("-"), strict=True):
        # The content is only read if the identities differ, as it may take seconds.
        if file_identity(path) != identity and ContentHashes().of(path) != digest:
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
