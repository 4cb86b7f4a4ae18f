"""The identity of files and devices across processes.

Models of equal content share their weights, whatever their paths. Equal paths are different files
where containers see different folders, and equal device numbers are different devices where
processes see different ones.
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
"""By the kind of device: what chooses and renumbers them."""


def file_identity(path: Path) -> list[int]:
    """Which file this process finds there: equal for two processes if it is the same one.

    Raises ArtifactFault if there is none.
    """
    try:
        return list(stat_identity(path))
    except OSError as error:
        raise unreadable(path, error) from error


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
