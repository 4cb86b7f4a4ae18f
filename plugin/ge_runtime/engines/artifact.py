"""Which files of a version folder are executed, by which engines, and why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.errors import ArtifactFault

SUFFIXES: Final[Mapping[str, str]] = {"onnxruntime": ".onnx", "torch": ".pt2"}
"""Engine, named as the package it needs, to its artifacts' suffix; the preferred one first.

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


def find_artifacts(
    version_dir: Path,
    engine: str,
    stages: Sequence[str] = (),
    installed: Callable[[str], bool] = is_installed,
) -> tuple[Artifact, ...]:
    """The artifact of each stage, named after it; of the whole model, without stages.

    Raises ArtifactFault with the text of `find_artifact` for each that is not to be had.
    """
    artifacts: list[Artifact] = []
    faults: list[str] = []
    for stem in stages or ("model",):
        try:
            artifacts.append(find_artifact(version_dir, engine, installed, stem=stem))
        except ArtifactFault as fault:
            faults.append(str(fault))
    if faults:
        raise ArtifactFault("\n".join(faults))
    return tuple(artifacts)


def find_artifact(
    version_dir: Path,
    engine: str,
    installed: Callable[[str], bool] = is_installed,
    *,
    stem: str = "model",
) -> Artifact:
    """The artifact `stem` in `version_dir` for `engine`, or for the best engine if that is "auto".

    Raises ArtifactFault with the folder, what was looked for, what is there, and the cure.
    """
    wanted = {
        name: stem + SUFFIXES[name] for name in ([engine] if engine in SUFFIXES else SUFFIXES)
    }
    there = [name for name in wanted if (version_dir / wanted[name]).is_file()]
    usable = [name for name in there if installed(name)]
    if not there:
        raise ArtifactFault(_nothing_there(version_dir, wanted))
    if not usable:
        packages = " or ".join(there)
        raise ArtifactFault(
            f"{version_dir}: found {' and '.join(wanted[name] for name in there)}, but "
            f"{packages} is not installed; run `pip install {there[0]}`"
        )
    chosen = usable[0]
    reason = f"{wanted[chosen]} is there and {chosen} is installed"
    for name, file in wanted.items():
        if name in usable[1:]:
            reason += f"; {file} would do too, but {chosen} is preferred"
        elif name != chosen:
            lack = f"is there, but {name} is not installed" if name in there else "is not there"
            reason += f"; {file} {lack}"
    if engine == chosen:
        reason += "; config.pbtxt asks for it"
    return Artifact(version_dir / wanted[chosen], chosen, reason)


def _nothing_there(version_dir: Path, wanted: Mapping[str, str]) -> str:
    names = sorted(entry.name for entry in version_dir.iterdir()) if version_dir.is_dir() else []
    looked_for = " or ".join(f"{file} (for {name})" for name, file in wanted.items())
    return (
        f"{version_dir}: found {', '.join(names) or 'nothing'}, expected {looked_for}; "
        "`make models` builds the artifacts"
    )
