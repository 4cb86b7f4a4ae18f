"""What lies in the model repositories: model folders and their version folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reference_server.config.schema import VersionPolicy
from reference_server.core.errors import internal

#: Triton reads a folder's name as a number and takes what leads it: `3x` is version 3.
_VERSION = re.compile(r"[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model's folder."""

    name: str
    path: Path

    def versions(self) -> tuple[int, ...]:
        """The numbers of the version folders, ascending."""
        numbers = {
            int(match[0])
            for entry in self.path.iterdir()
            if entry.is_dir() and (match := _VERSION.match(entry.name))
        }
        return tuple(sorted(numbers))


def scan(repositories: Sequence[Path]) -> list[ModelFolder]:
    """All model folders, by name.

    Raises ServerError if a repository is missing, or two repositories have the same model.
    """
    folders: dict[str, ModelFolder] = {}
    for repository in repositories:
        if not repository.is_dir():
            raise internal(f"failed to stat file {repository}")
        for path in sorted(repository.iterdir()):
            if not path.is_dir() or path.name.startswith("."):
                continue
            if path.name in folders:
                raise internal(
                    f"model '{path.name}' is in more than one repository: "
                    f"{folders[path.name].path} and {path}"
                )
            folders[path.name] = ModelFolder(path.name, path)
    return [folders[name] for name in sorted(folders)]


def wanted(policy: VersionPolicy, present: Sequence[int]) -> tuple[int, ...]:
    """The versions among `present` (ascending) that `policy` serves, ascending."""
    if policy.specific is not None:
        return tuple(version for version in present if version in policy.specific)
    if policy.latest is not None:
        return tuple(present[max(0, len(present) - policy.latest) :])
    return tuple(present)
