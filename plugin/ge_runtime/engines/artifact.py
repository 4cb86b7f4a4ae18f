"""Artifacts: the files of a version folder that are executed, and their engines."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ge_runtime.components import DEVICES, EngineEntry, Requirement, engine_entries, engines_on
from ge_runtime.errors import ArtifactFault


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file and the engine that will execute it."""

    path: Path
    """May not exist if the engine has files by chip: see `for_chip`."""
    engine: str
    reason: str
    """The reason why this file and engine were chosen, for the load report."""


def is_installed(requirement: Requirement) -> bool:
    """Return whether the required package, with its required file if any, is installed."""
    # `find_spec` does not import: only the chosen engine pays for the import of its library.
    spec = importlib.util.find_spec(requirement.module or requirement.name)
    if spec is None or not requirement.file:
        return spec is not None
    # Builds for the CPU and for CUDA have the same name; they differ in the files they contain.
    folders = map(Path, spec.submodule_search_locations or ())
    return any((folder / requirement.file).is_file() for folder in folders)


def experimental_notes(artifacts: Sequence[Artifact], device_kind: str) -> list[str]:
    """Return a line for each of the engines that was never run on this type of device."""
    engines = engines_on(device_kind)
    return [
        f"engine {name} is experimental on {device_kind}: it was never run on such a device"
        for name in dict.fromkeys(artifact.engine for artifact in artifacts)
        if engines[name].experimental
    ]


def chip_file(path: Path, chip: str) -> Path:
    """Return the path of a chip's artifact: model.910b3.om for model.om and Ascend910B3."""
    return path.with_name(f"{path.stem}{_chip_suffix(chip)}{path.suffix}")


def graph_name(path: Path, chip: str) -> str:
    """Return the graph's name: the file name without the suffixes of the engine and the chip."""
    return path.stem.removesuffix(_chip_suffix(chip))


def _chip_suffix(chip: str) -> str:
    return f".{chip.lower().removeprefix('ascend')}"


def for_chip(artifacts: Sequence[Artifact], chip: str) -> tuple[Artifact, ...]:
    """Replace the path of each artifact that has files by chip with the file for `chip`.

    Raises:
        ArtifactFault: There are only files for other chips.
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
    """Return the only artifact, for engines that cannot execute stages on a card.

    Args:
        artifacts: The artifacts of a model.
        device: The device's name, for the error.

    Raises:
        ArtifactFault: There are several artifacts.
    """
    if len(artifacts) > 1:
        stages = ", ".join(artifact.path.name for artifact in artifacts)
        raise ArtifactFault(
            f"{device}: found the stages {stages}, expected one graph, or only .om files, which "
            "pass tensors on within a card. `ge-runtime build` makes .om files of .onnx files"
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
    """Find the artifact of each stage, or of the whole model if there are no stages.

    The file of a whole model is called "model", or is the only compiled file, e.g. resnet50.om.

    Args:
        version_dir: The folder of the model's version.
        engine: Name of the engine, or "auto".
        stages: Names of the stages, which are the files' names without suffix.
        installed: Returns True if a package is installed.
        device_kind: Type of the device: "cpu", "cuda" or "npu".

    Raises:
        ArtifactFault: Has the text of `find_artifact` for each artifact that was not found.
    """
    artifacts: list[Artifact] = []
    faults: list[str] = []
    for stem in stages or (_only_stem(version_dir, engine, device_kind),):
        try:
            artifacts.append(
                find_artifact(version_dir, engine, installed, stem=stem, device_kind=device_kind)
            )
        except ArtifactFault as fault:
            faults.append(str(fault))
    if faults:
        raise ArtifactFault("\n".join(faults))
    return tuple(artifacts)


def _only_stem(version_dir: Path, engine: str, device_kind: str) -> str:
    """Return the name of a whole model's file without its suffix."""
    engines = engines_on(device_kind)
    entries = [*engines.values()] if engine == "auto" else [engines[engine]]
    compiled = [
        path
        for entry in entries
        if entry.by_chip
        for path in version_dir.glob(f"*{entry.suffix}")
        if path.is_file()
    ]
    if len(compiled) == 1 and not any(_found_files(version_dir, "model", each) for each in entries):
        return compiled[0].stem
    return "model"


def find_artifact(
    version_dir: Path,
    engine: str,
    installed: Callable[[Requirement], bool] = is_installed,
    *,
    stem: str = "model",
    device_kind: str = "cpu",
) -> Artifact:
    """Find the artifact `stem` for an engine; "auto" chooses the device's preferred engine.

    The arguments are those of `find_artifacts`.

    Raises:
        ArtifactFault: Names the folder, the expected files, the files found, and the fix.
    """
    engines = engines_on(device_kind)
    if engine != "auto":
        engines = {engine: engines[engine]}
    wanted = {name: stem + entry.suffix for name, entry in engines.items()}
    files = {name: _found_files(version_dir, stem, entry) for name, entry in engines.items()}
    found = [name for name, own in files.items() if own]
    usable = [name for name in found if installed(engines[name].requires)]
    if not found:
        raise ArtifactFault(_no_artifact(version_dir, wanted, stem, device_kind))
    if not usable:
        lacking = " or ".join(engines[name].requires.name for name in found)
        raise ArtifactFault(
            f"{version_dir}: found {' and '.join(files[name] for name in found)}, but "
            f"{lacking} is not installed; run `{engines[found[0]].requires.cure}`"
        )
    chosen = engines[usable[0]]  # the table lists a device's engines in order of preference
    why = f": {chosen.preferred_because}" if chosen.preferred_because else ""
    reason = f"{files[chosen.name]} is there and {chosen.requires.name} is installed"
    for name, file in wanted.items():
        if name in usable[1:]:
            reason += f"; {file} would do too, but {chosen.name} is preferred{why}"
        elif name != chosen.name:
            lacks = f"is there, but {engines[name].requires.name} is not installed"
            lack = lacks if name in found else "is not there"
            reason += f"; {file} {lack}"
    if engine == chosen.name:  # not "auto": no other engine was considered
        reason += "; config.pbtxt asks for it"
    return Artifact(version_dir / wanted[chosen.name], chosen.name, reason)


def _found_files(version_dir: Path, stem: str, entry: EngineEntry) -> str:
    if (version_dir / (stem + entry.suffix)).is_file():
        return stem + entry.suffix
    if not entry.by_chip:
        return ""
    return ", ".join(sorted(own.name for own in version_dir.glob(f"{stem}.*{entry.suffix}")))


def _describe(entry: Path) -> str:
    """Return the entry's name, and its type if it is not a file."""
    if entry.is_file():
        return entry.name
    if entry.is_symlink() and not entry.exists():
        return f"{entry.name} (a link to {entry.readlink()}, which is not there)"
    return f"{entry.name}/" if entry.is_dir() else f"{entry.name} (no file)"


def _no_artifact(version_dir: Path, wanted: Mapping[str, str], stem: str, device_kind: str) -> str:
    entries = version_dir.iterdir() if version_dir.is_dir() else ()
    # Python creates this folder, and it never contains a graph.
    names = sorted(_describe(entry) for entry in entries if entry.name != "__pycache__")
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
