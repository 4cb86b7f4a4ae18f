"""The folders of the model repositories: their files, the state of these, and load overrides.

A load request can bring a configuration and files (`Override`). These files are written below a
directory of their own, never outside of it, which lives as long as a model loaded from it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.config import json_reader
from reference_server.config.pbtxt import FILE_NAME
from reference_server.config.schema import VersionPolicy
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.profiles import TritonProfile
from reference_server.repository.model_ids import ModelId

log = logging.getLogger(__name__)

#: Triton reads a folder's name as a number and takes what leads it: `3x` is version 3. A name with
#: a zero in front is none, unless the zero is all of it.
_VERSION = re.compile(r"[1-9][0-9]*|0$")
DUPLICATE = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True)
class Override:
    """`config` is JSON that replaces config.pbtxt; `files` replace all of the model's folder.

    `files` maps paths within the folder to contents.
    """

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


class FileDirectory:
    """A model's folder made of given files alone; removed when its last holder lets go.

    Made with one holder. Any thread.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Write `files`. Raises ServerError if a path leads out, or nowhere."""
        self.path = Path(tempfile.mkdtemp(prefix="folder"))
        self._lock = threading.Lock()
        self._holders = 1
        try:
            for name, content in files.items():
                target = _inside(self.path, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        except OSError as error:
            self.release()
            raise internal(f"failed to write the files of a load request: {error}") from error
        except BaseException:
            self.release()
            raise

    def hold(self) -> None:
        """Keep the directory until `release`."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """Let go; the last to do so removes the directory."""
        with self._lock:
            self._holders -= 1
            left = self._holders
        if not left:
            shutil.rmtree(self.path, ignore_errors=True)


def _inside(directory: Path, name: str) -> Path:
    """The path of the file `name` below `directory`. Raises ServerError if it is none."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.endswith("/") or ".." in parts or "\0" in name:
        raise invalid_arg(f"'{name}' names no file within the model's directory")
    return directory.joinpath(*parts)


def parse_config_override(text: str) -> ConfigProto:
    """The configuration in the JSON `text`. Raises ServerError with Triton's text."""
    try:
        return json_reader.read(text)
    except ValueError as error:
        raise invalid_arg(f"Invalid config override: {error}") from error


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model's folder; `temporary` is what keeps it, if a load request brought its files."""

    id: ModelId
    path: Path
    temporary: FileDirectory | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.id.name

    def versions(self) -> tuple[int, ...]:
        """The numbers of the version folders, ascending; none if the folder is gone.

        Folders that are none are told in the log, as in Triton.
        """
        try:
            names = sorted(entry.name for entry in self.path.iterdir() if entry.is_dir())
        except OSError:
            return ()
        numbers = set()
        for name in names:
            match = _VERSION.match(name)
            # The number of one with more bits cannot be asked for; the real server dies of it.
            if match and (number := int(match[0])) < 1 << 63:
                numbers.add(number)
            else:
                zeros = "contains leading zeros in its directory name"
                reason = zeros if name[0] == "0" else "fails to convert to integral number"
                log.warning("ignore version directory '%s' which %s", name, reason)
        return tuple(sorted(numbers))


@dataclass(frozen=True, slots=True)
class Stamp:
    """The state of a folder's files: equal stamps mean that nothing was changed in between.

    `config_ns` and `folder_ns` are modification times, in nanoseconds, of config.pbtxt and of the
    folder itself; `entries` maps each other path below it to its time and its size.
    """

    config_ns: int
    folder_ns: int
    entries: Mapping[str, tuple[int, int]]

    def adds_to(self, before: Stamp) -> bool:
        """True if an entry, config.pbtxt apart, is new or changed since `before`."""
        return any(before.entries.get(path) != entry for path, entry in self.entries.items())


def folder_stamp(folder: Path) -> Stamp:
    """The state of the files in `folder` now, also of those that links lead to.

    Files that vanish meanwhile do not count.
    """
    entries: dict[str, tuple[int, int]] = {}
    config_ns = folder_ns = 0
    seen: set[str] = set()
    for directory, below, names in os.walk(folder, followlinks=True):
        here = Path(directory)
        place = os.path.realpath(here)
        if place in seen:  # a link leads back
            below.clear()
            continue
        seen.add(place)
        for path in (here, *(here / name for name in names)):
            try:
                found = path.stat()
            except OSError:
                continue
            if path == folder:
                folder_ns = found.st_mtime_ns
            elif here == folder and path.name == FILE_NAME:
                config_ns = found.st_mtime_ns
            else:
                entries[str(path)] = (found.st_mtime_ns, found.st_size)
    return Stamp(config_ns, folder_ns, entries)


class Repositories:
    """The folders that models lie in, of which each is a namespace if they are `namespaced`."""

    def __init__(self, paths: Sequence[Path], *, namespaced: bool = False) -> None:
        self._paths = tuple(paths)
        self._namespaces = tuple(str(path) if namespaced else "" for path in paths)

    def directories(self) -> dict[ModelId, list[Path]]:
        """The folders of each model, hidden ones too; more than one make it ambiguous.

        Raises ServerError if a repository is missing, or no directory.
        """
        found: dict[ModelId, list[Path]] = {}
        for repository, namespace in zip(self._paths, self._namespaces, strict=True):
            if not repository.exists():
                raise internal(f"failed to stat file {repository}")
            if not repository.is_dir():
                raise invalid_arg("repository path is not a valid directory")
            for path in repository.iterdir():
                if path.is_dir():
                    found.setdefault(ModelId(path.name, namespace), []).append(path)
        return dict(sorted(found.items(), key=lambda item: (item[0].namespace, item[0].name)))

    def ids(self, name: str, namespace: str = "") -> list[ModelId]:
        """The models of this name; if there is none, the one that it would be in `namespace`."""
        found = {
            ModelId(name, namespace): None
            for repository, namespace in zip(self._paths, self._namespaces, strict=True)
            if (repository / name).is_dir()
        }
        return list(found) or [ModelId(name, namespace)]

    def find(self, model: ModelId) -> ModelFolder:
        """The folder of a model. Raises ServerError if there is none, or more than one."""
        found = [
            path
            for repository, namespace in zip(self._paths, self._namespaces, strict=True)
            if namespace == model.namespace and (path := repository / model.name).is_dir()
        ]
        if not found:
            raise invalid_arg("model not found in any model repository.")
        if len(found) > 1:
            raise invalid_arg(f"{DUPLICATE}: {', '.join(map(str, found))}")
        return ModelFolder(model, found[0])


def not_polled(name: str) -> ServerError:
    """What a load request is told of a model whose folder cannot be read."""
    return internal(f"failed to load '{name}', failed to poll from model repository")


def check_name(name: str, profile: TritonProfile) -> None:
    """Raise ServerError unless `name` can only lead to a folder directly within a repository."""
    if profile.newer_name_checks:
        if not name.strip():
            raise invalid_arg("Model name cannot be empty. Please enter a valid name to deploy.")
        if "/" in name or name.strip() == "..":
            raise invalid_arg(
                f"invalid model name '{name}', model name must not contain path traversal "
                "characters"
            )
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise not_polled(name)


def wanted_versions(policy: VersionPolicy, present: Sequence[int]) -> tuple[int, ...]:
    """The versions among `present` (ascending) that `policy` serves, ascending."""
    if policy.specific is not None:
        return tuple(version for version in present if version in policy.specific)
    if policy.latest is not None:
        return tuple(present[max(0, len(present) - policy.latest) :])
    return tuple(present)
