"""Finds files and folders of a model repository that are misplaced, misnamed, or not downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from reference_server.config.pbtxt import FILE_NAME

_NUMBER = re.compile(r"[0-9]+$")
_VERSION_LIKE = re.compile(r"(?:(?:v|ver|version)[._-]?|0+)([0-9]+)$", re.IGNORECASE)
_CONFIG_LIKE = re.compile(r"\.pbtxt|config\.(?:txt|pb|pbtext|prototxt)$")
_MODEL_FILE = re.compile(r"model\.\w+$")
#: The beginning of a file that Git LFS has not downloaded; such files are short.
_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = 1024
#: The levels of folders that are searched for repositories.
_DEPTH = 3


class FileFault(NamedTuple):
    """A fault of a file or link; `is_certain` is False if a load may succeed."""

    file: Path
    text: str
    hint: str
    is_certain: bool


def no_version_hint(folder: Path) -> str:
    """Return the fix for a model's folder without a version folder."""
    deeper = folder / folder.name / FILE_NAME
    if deeper.is_file():
        return f"the model is one folder too deep; move the content of '{deeper.parent}' up"
    names = sorted(path.name for path in entries(folder))
    for name in names:
        match = _VERSION_LIKE.match(name)
        if match and (folder / name).is_dir():
            return f"found the folder '{name}'; rename it to '{int(match[1]) or 1}'"
    files = [name for name in names if _MODEL_FILE.match(name)]
    if files:
        return f"found '{files[0]}' beside {FILE_NAME}; move it into the folder '1'"
    return "create the folder '1' (Git keeps no empty folders; put a file such as .gitkeep into it)"


def misplaced_code_hint(file: Path) -> str:
    """Return the fix for a missing model file, or ""."""
    version = file.parent
    for place in (version.parent, *(path for path in entries(version) if path.is_dir())):
        if (place / file.name).is_file():
            return f"found '{place / file.name}'; move it to '{version}'"
    named = [path for path in entries(version) if path.suffix.lower() == file.suffix]
    if len(named) == 1:
        return f"found '{named[0].name}'; rename it to '{file.name}'"
    return ""


def file_faults(folder: Path, config_file: Path, artifact: str) -> Iterator[FileFault]:
    """Yield the faults of files in a model's folder, whether or not the configuration names them.

    Args:
        folder: The model's folder.
        config_file: The model's configuration, which may be missing.
        artifact: The name of the graph or code in each version folder.
    """
    if not os.path.lexists(config_file):
        yield from _other_configs(folder)
    for where, folders, files in os.walk(folder):
        paths = [Path(where, name) for name in sorted((*folders, *files))]
        for fault in dangling_links(paths):
            is_certain = fault.file == config_file or fault.file.name == artifact
            yield fault._replace(is_certain=is_certain)
        for path in paths:
            if path.name in files and is_pointer(path):
                text = f"'{path}' is a Git LFS pointer, not the file itself"
                yield FileFault(path, text, "run `git lfs pull`", path.name == artifact)


def dangling_links(paths: Iterable[Path]) -> Iterator[FileFault]:
    """Yield links to files that do not exist."""
    for path in paths:
        if path.is_symlink() and not path.exists():
            text = f"dangling link: '{path}' leads to '{path.readlink()}', which does not exist"
            yield FileFault(path, text, "restore the file, or copy it here", is_certain=False)


def _other_configs(folder: Path) -> Iterator[FileFault]:
    """Yield files that were probably meant as the missing configuration."""
    for path in entries(folder):
        if path.is_file() and _CONFIG_LIKE.search(path.name):
            text = f"'{path.name}' is not read, and there is no {FILE_NAME}"
            hint = f"rename it to {FILE_NAME}, and fill in its placeholders if it is a template"
            yield FileFault(path, text, hint, is_certain=False)
            return


def is_pointer(path: Path) -> bool:
    """Return True if a file is only a pointer of Git LFS."""
    try:
        if path.stat().st_size >= _LFS_SIZE:
            return False
        return path.read_bytes().startswith(_LFS)
    except OSError:
        return False


# -- the root of a repository


def is_repository(path: Path) -> bool:
    """Return True if a folder has models, even faulty ones, and is not a model itself."""
    if _is_root(path):
        return True
    is_inside = any((folder / FILE_NAME).is_file() for folder in (path, path.absolute().parent))
    models = (entry for entry in entries(path) if entry.is_dir() and entry.name[0] != ".")
    return not is_inside and any(map(_looks_like_model, models))


def _looks_like_model(folder: Path) -> bool:
    """Return True if a folder has a part of a model: a configuration, a version, or a file."""
    return any(
        _CONFIG_LIKE.search(path.name) or _MODEL_FILE.match(path.name)
        if path.is_file()
        else _NUMBER.match(path.name) or _VERSION_LIKE.match(path.name) or path.name == "configs"
        for path in entries(folder)
    )


def likely_roots(path: Path) -> Sequence[Path]:
    """Return the nearest folders above or below `path` that are repositories of models."""
    folder = path.absolute()
    for above, model in ((folder.parent, folder), (folder.parent.parent, folder.parent)):
        if (model / FILE_NAME).is_file():
            return [above]
    level = [path]
    for _ in range(_DEPTH):
        level = [
            entry
            for parent in level
            for entry in entries(parent)
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(".")
        ]
        found = [entry for entry in level if _is_root(entry)]
        if found:
            return found
    return []


def _is_root(folder: Path) -> bool:
    return any((entry / FILE_NAME).is_file() for entry in entries(folder))


def entries(folder: Path) -> list[Path]:
    """Return the paths in a folder, sorted; empty if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
