"""Finds the model repositories in a clone of a Git repository."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from reference_server.config.pbtxt import FILE_NAME

#: Names of files that are a configuration, or a template of one.
CONFIG_LIKE = re.compile(r"(?:[\w-]*config[\w-]*\.pbtxt|config\.pbtxt\.\w+)$")
_MODEL_FILE = re.compile(r"model\.(?:py|onnx|pt|plan|xml|savedmodel|graphdef|dali)$")
_SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "qa", "third_party"})
_STEP = re.compile(r"model_name\s*:\s*[\"']([^\"']+)")
_DEPTH = 8


def model_config(folder: Path) -> Path | None:
    """Return the configuration of a model's folder: config.pbtxt, or a template of it."""
    exact = folder / FILE_NAME
    if exact.is_file():
        return exact
    named = sorted(path for path in folder.glob("*config*") if CONFIG_LIKE.match(path.name))
    return next((path for path in named if path.is_file()), None)


def is_model(folder: Path) -> bool:
    """Return True if a folder has a configuration, or a version with a model."""
    if model_config(folder) is not None:
        return True
    return any(
        version.name.isdecimal() and any(_MODEL_FILE.match(path.name) for path in version.glob("*"))
        for version in folder.glob("[0-9]*")
    )


def find_roots(clone: Path) -> Sequence[Path]:
    """Return the folders that contain models, with the most promising folder first.

    Folders are ranked by the number of ensembles whose models are all present, then by the number
    of models, then by depth.
    """
    found: dict[Path, list[Path]] = {}
    for where, folders, _ in os.walk(clone):
        here = Path(where)
        depth = len(here.relative_to(clone).parts)
        folders[:] = sorted(
            name for name in folders if name[0] != "." and name not in _SKIPPED and depth < _DEPTH
        )
        models = [here / name for name in folders if is_model(here / name)]
        if models:
            found[here] = models
            inside = {path.name for path in models}
            folders[:] = [name for name in folders if name not in inside]
    return sorted(found, key=lambda root: (_score(root, found[root]), str(root)))


def _score(root: Path, models: Sequence[Path]) -> tuple[int, int, int]:
    names = {path.name for path in models}
    complete = 0
    for model in models:
        config = model_config(model)
        text = config.read_text(encoding="utf-8", errors="replace") if config else ""
        steps = set(_STEP.findall(text))
        complete += bool(steps) and steps <= names
    return -complete, -len(models), len(root.parts)
