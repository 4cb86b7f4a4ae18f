"""Artifacts: which files of a version folder are executed, by which engines, and their content.

Graphs of equal content are one, whatever their paths.
"""

from __future__ import annotations

import hashlib
import importlib.util
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from ge_runtime.components import DEVICES, EngineEntry, Requirement, engine_entries, engines_on
from ge_runtime.errors import ArtifactFault


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file, the engine that will execute it, and the reason for both in words."""

    path: Path
    """Of an engine `by_chip` it may not be there, and one for the chip is: see `for_chip`."""
    engine: str
    reason: str


def is_installed(requirement: Requirement) -> bool:
    """Whether Python finds the package, or what is needed of one."""
    # Found, not imported: only the engine that is chosen pays for its library's import.
    spec = importlib.util.find_spec(requirement.module or requirement.name)
    if spec is None or not requirement.file:
        return spec is not None
    # Builds for the CPU and for CUDA have one name: only a file inside tells them apart.
    folders = map(Path, spec.submodule_search_locations or ())
    return any((folder / requirement.file).is_file() for folder in folders)


def experimental_notes(artifacts: Sequence[Artifact], device_kind: str) -> list[str]:
    """A line for people for each engine of these that was never run on such a device."""
    engines = engines_on(device_kind)
    return [
        f"engine {name} is experimental on {device_kind}: it was never run on such a device"
        for name in dict.fromkeys(artifact.engine for artifact in artifacts)
        if engines[name].experimental
    ]


def chip_file(path: Path, chip: str) -> Path:
    """Where the artifact for a chip lies: model.910b3.om of model.om and Ascend910B3."""
    return path.with_name(f"{path.stem}{_chip_suffix(chip)}{path.suffix}")


def graph_name(path: Path, chip: str) -> str:
    """The name of the graph, without the file's suffix and the chip's."""
    return path.stem.removesuffix(_chip_suffix(chip))


def _chip_suffix(chip: str) -> str:
    return f".{chip.lower().removeprefix('ascend')}"


def for_chip(artifacts: Sequence[Artifact], chip: str) -> tuple[Artifact, ...]:
    """Of each artifact the file for this chip, where there are files by chip.

    Raises ArtifactFault if there are only others'.
    """
    by_chip = {entry.name for entry in engine_entries() if entry.by_chip}
    return tuple(
        _for_chip(artifact, chip) if artifact.engine in by_chip else artifact
        for artifact in artifacts
    )


def _for_chip(artifact: Artifact, chip: str) -> Artifact:
    path = artifact.path
    own = chip_file(path, chip)
    if own.is_file():
        return replace(artifact, path=own, reason=f"{artifact.reason}; {own.name} is for {chip}")
    if path.is_file():
        return artifact
    others = ", ".join(
        sorted(each.name for each in path.parent.glob(f"{path.stem}.*{path.suffix}"))
    )
    raise ArtifactFault(
        f"{path.parent}: found {others or 'none'}, expected {own.name} or {path.name}, for {chip}: "
        f"`ge-runtime build --soc-version {chip}`"
    )


def only_graph(artifacts: Sequence[Artifact], device: str) -> Artifact:
    """The one artifact, for engines of a card that hand nothing over from stage to stage.

    device: for people. Raises ArtifactFault.
    """
    if len(artifacts) > 1:
        stages = ", ".join(artifact.path.name for artifact in artifacts)
        raise ArtifactFault(
            f"{device}: found the stages {stages}, expected one graph, or .om files alone, which "
            "hand tensors over on a card: `ge-runtime build` makes them of .onnx files"
        )
    return artifacts[0]


def find_artifacts(
    version_dir: Path,
    engine: str,
    stages: Sequence[str] = (),
    installed: Callable[[Requirement], bool] = is_installed,
    *,
    device_kind: str = "cpu",
) -> tuple[Artifact, ...]:
    """The artifact of each stage, named after it; of the whole model, without stages.

    Raises ArtifactFault with the text of `find_artifact` for each that is not to be had.
    """
    artifacts: list[Artifact] = []
    faults: list[str] = []
    for stem in stages or ("model",):
        try:
            artifacts.append(
                find_artifact(version_dir, engine, installed, stem=stem, device_kind=device_kind)
            )
        except ArtifactFault as fault:
            faults.append(str(fault))
    if faults:
        raise ArtifactFault("\n".join(faults))
    return tuple(artifacts)


def find_artifact(
    version_dir: Path,
    engine: str,
    installed: Callable[[Requirement], bool] = is_installed,
    *,
    stem: str = "model",
    device_kind: str = "cpu",
) -> Artifact:
    """The artifact `stem` in `version_dir` for `engine`, or if "auto" for the device's best one.

    installed: whether Python finds a package.
    Raises ArtifactFault with the folder, what was looked for, what is there, and the cure.
    """
    engines = engines_on(device_kind)
    if engine != "auto":
        engines = {engine: engines[engine]}
    wanted = {name: stem + entry.suffix for name, entry in engines.items()}
    files = {name: _there(version_dir, stem, entry) for name, entry in engines.items()}
    there = [name for name, found in files.items() if found]
    usable = [name for name in there if installed(engines[name].requires)]
    if not there:
        raise ArtifactFault(_nothing_there(version_dir, wanted, stem, device_kind))
    if not usable:
        lacking = " or ".join(engines[name].requires.name for name in there)
        raise ArtifactFault(
            f"{version_dir}: found {' and '.join(files[name] for name in there)}, but "
            f"{lacking} is not installed; run `{engines[there[0]].requires.cure}`"
        )
    chosen = engines[usable[0]]  # the table lists a device's engines in order of preference
    why = f": {chosen.preferred_because}" if chosen.preferred_because else ""
    reason = f"{files[chosen.name]} is there and {chosen.requires.name} is installed"
    for name, file in wanted.items():
        if name in usable[1:]:
            reason += f"; {file} would do too, but {chosen.name} is preferred{why}"
        elif name != chosen.name:
            lacks = f"is there, but {engines[name].requires.name} is not installed"
            lack = lacks if name in there else "is not there"
            reason += f"; {file} {lack}"
    if engine == chosen.name:  # not "auto": the table had this one engine
        reason += "; config.pbtxt asks for it"
    return Artifact(version_dir / wanted[chosen.name], chosen.name, reason)


def _there(version_dir: Path, stem: str, entry: EngineEntry) -> str:
    """The engine's artifact, or those for chips, by their names; empty if there is none."""
    if (version_dir / (stem + entry.suffix)).is_file():
        return stem + entry.suffix
    if not entry.by_chip:
        return ""
    return ", ".join(sorted(own.name for own in version_dir.glob(f"{stem}.*{entry.suffix}")))


def _told(entry: Path) -> str:
    """Its name, and what it is if that is no file."""
    if entry.is_file():
        return entry.name
    if entry.is_symlink() and not entry.exists():
        return f"{entry.name} (a link to {entry.readlink()}, which is not there)"
    return f"{entry.name}/" if entry.is_dir() else f"{entry.name} (no file)"


def _nothing_there(
    version_dir: Path, wanted: Mapping[str, str], stem: str, device_kind: str
) -> str:
    entries = version_dir.iterdir() if version_dir.is_dir() else ()
    # What Python leaves behind, sooner or later, is nobody's graph.
    names = sorted(_told(entry) for entry in entries if entry.name != "__pycache__")
    looked_for = " or ".join(f"{file} (for {name})" for name, file in wanted.items())
    return f"{version_dir}: found {', '.join(names) or 'nothing'}, expected {looked_for}; " + _cure(
        names, wanted, stem, device_kind
    )


def _cure(names: Sequence[str], wanted: Mapping[str, str], stem: str, device_kind: str) -> str:
    if device_kind != "npu" and f"{stem}.om" in names:
        return f"{stem}.om is for a card, which the parameter 'devices' names, e.g. npu:0"
    suffixes = {Path(file).suffix for file in wanted.values()}
    graphs = [name for name in names if Path(name).suffix in suffixes]
    if graphs and stem == "model":
        return f"rename {graphs[0]}, if that is the graph"
    return f"`{DEVICES[device_kind].build}` builds the artifacts"


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
