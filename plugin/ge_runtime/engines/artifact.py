"""Which file of a version folder is executed, by which engine, and why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.errors import ArtifactFault

FILES: Final[Mapping[str, str]] = {"onnxruntime": "model.onnx", "torch": "model.pt2"}
"""Engine, named as the package it needs, to its artifact; the preferred one first.

onnxruntime leads: it is a fraction of torch's size and writes results where they are planned.
"""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file, the engine that will execute it, and the reason for both in words."""

    path: Path
    engine: str
    reason: str


def is_installed(engine: str) -> bool:
    """Whether the engine's package can be imported. Does not import it."""
    return importlib.util.find_spec(engine) is not None


def find_artifact(
    version_dir: Path, engine: str, installed: Callable[[str], bool] = is_installed
) -> Artifact:
    """The artifact in `version_dir` for `engine`, or for the best engine if that is "auto".

    Raises ArtifactFault with the folder, what was looked for, what is there, and the cure.
    """
    wanted = [engine] if engine in FILES else list(FILES)
    there = [name for name in wanted if (version_dir / FILES[name]).is_file()]
    usable = [name for name in there if installed(name)]
    if not there:
        raise ArtifactFault(_nothing_there(version_dir, wanted))
    if not usable:
        packages = " or ".join(there)
        raise ArtifactFault(
            f"{version_dir}: found {' and '.join(FILES[name] for name in there)}, but "
            f"{packages} is not installed; run `pip install {there[0]}`"
        )
    chosen = usable[0]
    reason = f"{FILES[chosen]} is there and {chosen} is installed"
    for name in wanted:
        if name in usable[1:]:
            reason += f"; {FILES[name]} would do too, but {chosen} is preferred"
        elif name != chosen:
            lack = f"is there, but {name} is not installed" if name in there else "is not there"
            reason += f"; {FILES[name]} {lack}"
    if engine == chosen:
        reason += "; config.pbtxt asks for it"
    return Artifact(version_dir / FILES[chosen], chosen, reason)


def _nothing_there(version_dir: Path, wanted: list[str]) -> str:
    names = sorted(entry.name for entry in version_dir.iterdir()) if version_dir.is_dir() else []
    looked_for = " or ".join(f"{FILES[name]} (for {name})" for name in wanted)
    return (
        f"{version_dir}: found {', '.join(names) or 'nothing'}, expected {looked_for}; "
        "`make models` builds the artifacts"
    )
