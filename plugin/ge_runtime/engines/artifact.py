"""Which files of a version folder are executed, by which engines, and why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.errors import ArtifactFault

ENGINES: Final[Mapping[str, Mapping[str, str]]] = {
    "cpu": {"onnxruntime": ".onnx", "torch": ".pt2"},
    "cuda": {"onnxruntime": ".onnx", "torch": ".pt2"},
    "npu": {"om": ".om", "torch": ".pt2", "ge_session": ".air"},
}
"""Kind of device: its engines and their artifacts' suffix, the preferred one first.

onnxruntime leads: it is a fraction of torch's size and writes results where they are planned. On an
Ascend card om leads: of it alone all memory is planned before a byte is allocated.
"""

SUFFIXES: Final = {name: suffix for own in ENGINES.values() for name, suffix in own.items()}
"""Engine: its artifacts' suffix."""

_PACKAGES: Final = {
    ("cuda", "onnxruntime"): "onnxruntime-gpu",
    ("cuda", "torch"): "torch for CUDA",
    ("npu", "om"): "acl",
    ("npu", "torch"): "torch_npu",
    ("npu", "ge_session"): "ge",
}
"""Kind of device and engine: what it needs, where that is not a package of the engine's name."""

_LIBRARIES: Final = {
    "onnxruntime-gpu": ("onnxruntime", "capi/libonnxruntime_providers_cuda.so"),
    "torch for CUDA": ("torch", "lib/libtorch_cuda.so"),
}
"""What is needed: the package that Python imports for it, and the file in it that others lack."""

_SET_ENV: Final = "source /usr/local/Ascend/cann/set_env.sh"
_INSTALL: Final = {
    "acl": _SET_ENV,
    "ge": _SET_ENV,
    "onnxruntime-gpu": "pip uninstall -y onnxruntime; pip install 'onnxruntime-gpu[cuda,cudnn]'",
    "torch for CUDA": "pip uninstall -y torch; pip install torch",
}
"""Package: what has it installed, where that is not `pip install` of its name."""

_MERITS: Final = {"om": "all its memory is planned"}
"""Engine: why it is preferred, where that is told."""

_BUILD: Final = {"cpu": "make models", "cuda": "make models", "npu": "ge-runtime build"}
"""Kind of device: what builds its artifacts."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file, the engine that will execute it, and the reason for both in words."""

    path: Path
    engine: str
    reason: str


def is_installed(package: str) -> bool:
    """Whether Python finds the package, or what is needed of one. Does not import it."""
    module, file = _LIBRARIES.get(package, (package, ""))
    spec = importlib.util.find_spec(module)
    if spec is None or not file:
        return spec is not None
    return any((Path(folder) / file).is_file() for folder in spec.submodule_search_locations or ())


def only_graph(artifacts: Sequence[Artifact], place: str) -> Artifact:
    """The one artifact, for engines of a card that hand nothing over from stage to stage.

    place: the device, for people. Raises ArtifactFault.
    """
    if len(artifacts) > 1:
        stages = ", ".join(artifact.path.name for artifact in artifacts)
        raise ArtifactFault(
            f"{place}: found the stages {stages}, expected one graph, or .om files alone, which "
            "hand tensors over on a card: `ge-runtime build` makes them of .onnx files"
        )
    return artifacts[0]


def find_artifacts(
    version_dir: Path,
    engine: str,
    stages: Sequence[str] = (),
    installed: Callable[[str], bool] = is_installed,
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
    installed: Callable[[str], bool] = is_installed,
    *,
    stem: str = "model",
    device_kind: str = "cpu",
) -> Artifact:
    """The artifact `stem` in `version_dir` for `engine`, or if "auto" for the device's best one.

    installed: whether Python finds a package.
    Raises ArtifactFault with the folder, what was looked for, what is there, and the cure.
    """
    wanted = {
        name: stem + SUFFIXES[name]
        for name in ([engine] if engine in SUFFIXES else ENGINES[device_kind])
    }
    packages = {name: _PACKAGES.get((device_kind, name), name) for name in wanted}
    there = [name for name in wanted if (version_dir / wanted[name]).is_file()]
    usable = [name for name in there if installed(packages[name])]
    if not there:
        raise ArtifactFault(_nothing_there(version_dir, wanted, stem, device_kind))
    if not usable:
        lacking = " or ".join(packages[name] for name in there)
        package = packages[there[0]]
        cure = _INSTALL.get(package, f"pip install {package}")
        raise ArtifactFault(
            f"{version_dir}: found {' and '.join(wanted[name] for name in there)}, but "
            f"{lacking} is not installed; run `{cure}`"
        )
    chosen = usable[0]
    why = f": {_MERITS[chosen]}" if chosen in _MERITS else ""
    reason = f"{wanted[chosen]} is there and {packages[chosen]} is installed"
    for name, file in wanted.items():
        if name in usable[1:]:
            reason += f"; {file} would do too, but {chosen} is preferred{why}"
        elif name != chosen:
            lacks = f"is there, but {packages[name]} is not installed"
            lack = lacks if name in there else "is not there"
            reason += f"; {file} {lack}"
    if engine == chosen:
        reason += "; config.pbtxt asks for it"
    return Artifact(version_dir / wanted[chosen], chosen, reason)


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
    names = sorted(map(_told, version_dir.iterdir())) if version_dir.is_dir() else []
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
    return f"`{_BUILD[device_kind]}` builds the artifacts"
