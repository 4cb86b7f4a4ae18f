"""The graphs beside a configuration of npu_ge: what has to become of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TAKEN: Final = ("model.onnx", "model.om")


def notes_on(folder: Path) -> Iterator[str]:
    """What to do with the graphs of a model's folder, a line for each version that needs it.

    npu_ge takes any ONNX file below a version's folder, and if there is none one of TensorFlow.
    """
    for version in sorted(folder.glob("*/")):
        if not version.name.isdecimal() or any((version / name).is_file() for name in _TAKEN):
            continue
        own = f"{version.name}/model"
        if found := _found(folder, version, "*.onnx"):
            yield f"{found}: ge_runtime takes {own}.onnx: rename it, then `ge-runtime build`"
        elif found := _found(folder, version, "*.pb"):
            yield f"{found}: no engine takes it: `atc --framework=3` makes {own}.om of it"


def _found(folder: Path, version: Path, pattern: str) -> str:
    return " or ".join(str(file.relative_to(folder)) for file in sorted(version.rglob(pattern)))
