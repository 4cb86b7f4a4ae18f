"""The models in the repositories: ids, and the versions, files and overrides of model folders.

With `--model-namespacing`, an id contains the repository as a namespace, so that models of
different repositories may have the same name. The name of an ensemble's step is looked up in the
ensemble's namespace first, and then in all namespaces, where it must be unique.

A load request can contain a configuration and files (`Override`). The files are written only into a
temporary directory, which exists as long as a model that was loaded from it.
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

from reference_server.config import json_form
from reference_server.config.pbtxt import FILE_NAME
from reference_server.config.schema import VersionPolicy
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.profiles import TritonProfile


class ModelId(str):
    """A model's `name` and `namespace`, as the string `namespace::name`.

    Without a namespace it is equal to the name.
    """

    __slots__ = ("name", "namespace")

    name: str
    namespace: str

    def __new__(cls, name: str, namespace: str = "") -> ModelId:
        """Return the id of the model `name`."""
        found = super().__new__(cls, f"{namespace}::{name}" if namespace else name)
        found.name = name
        found.namespace = namespace
        return found


class ModelIds:
    """An index of model ids by name. Not thread-safe."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[ModelId, None]] = {}

    def add(self, model: ModelId) -> None:
        """Add a model; no-op if it is present."""
        self._by_name.setdefault(model.name, {})[model] = None

    def discard(self, model: ModelId) -> None:
        """Remove a model; `named` still returns a list for its name."""
        self._by_name.get(model.name, {}).pop(model, None)

    def named(self, name: str) -> list[ModelId] | None:
        """Return the models of this name; None if there has never been any."""
        found = self._by_name.get(name)
        return None if found is None else list(found)

    def resolve(self, name: str, namespace: str) -> ModelId | None:
        """Return the model `name` of an ensemble in `namespace`; None if missing or ambiguous."""
        found = self._by_name.get(name, {})
        own = ModelId(name, namespace)
        if own in found:
            return own
        return next(iter(found)) if namespace and len(found) == 1 else None

    def is_affected(self, name: str, namespace: str, model: ModelId) -> bool:
        """Return whether a change of `model` can affect a step `name` in `namespace`."""
        own = ModelId(name, namespace)
        return name == model.name and (model == own or own not in self._by_name.get(name, {}))


log = logging.getLogger(__name__)

#: Triton reads the leading digits of a folder's name as the version: `3x` is version 3. It ignores
#: names with leading zeros, except `0`.
_VERSION = re.compile(r"[1-9][0-9]*|0$")
MISSING = "model not found in any model repository."
DUPLICATE = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True)
class Override:
    """The configuration and files of a load request.

    `config` is JSON that replaces config.pbtxt. `files` maps paths within the model's folder to
    contents; if given, they replace the whole folder.
    """

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


class FileDirectory:
    """A temporary model folder with given files, deleted with its last reference. Thread-safe.

    It is created with one reference.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Write `files`. Raises ServerError if a path is invalid or outside the folder."""
        self.path = Path(tempfile.mkdtemp(prefix="folder"))
        self._lock = threading.Lock()
        self._references = 1
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
        """Add a reference."""
        with self._lock:
            self._references += 1

    def release(self) -> None:
        """Remove a reference; the last call deletes the directory."""
        with self._lock:
            self._references -= 1
            remaining = self._references
        if not remaining:
            shutil.rmtree(self.path, ignore_errors=True)


def _inside(directory: Path, name: str) -> Path:
    """Return the path of the file `name` in `directory`. Raises ServerError if it is invalid."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.endswith("/") or ".." in parts or "\0" in name:
        raise invalid_arg(
            f"file of a load request: found '{name}'; expected a file's path in the folder"
        )
    return directory.joinpath(*parts)


def parse_config_override(text: str) -> ConfigProto:
    """Return the configuration in the JSON `text`. Raises ServerError with Triton's text."""
    try:
        return json_form.read(text)
    except ValueError as error:
        raise invalid_arg(f"Invalid config override: {error}") from error


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The folder of one model; `temporary` is set if its files come from a load request."""

    id: ModelId
    path: Path
    temporary: FileDirectory | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.id.name

    def versions(self) -> tuple[int, ...]:
        """Return the numbers of the version folders, ascending; empty if the folder is missing.

        As in Triton, other folders are logged.
        """
        try:
            names = sorted(entry.name for entry in self.path.iterdir() if entry.is_dir())
        except OSError:
            return ()
        numbers = set()
        for name in names:
            match = _VERSION.match(name)
            # Clients cannot request larger numbers, and Triton crashes on them.
            if match and (number := int(match[0])) < 1 << 63:
                numbers.add(number)
            else:
                zeros = "contains leading zeros in its directory name"
                reason = zeros if name[0] == "0" else "fails to convert to integral number"
                log.warning("ignore version directory '%s' which %s", name, reason)
        return tuple(sorted(numbers))


@dataclass(frozen=True, slots=True)
class Stamp:
    """The state of a folder's files; equal stamps mean that nothing has changed.

    `config_ns` and `folder_ns` are the modification times of config.pbtxt and of the folder, in
    nanoseconds. `entries` maps each other path in the folder to its modification time and size.
    """

    config_ns: int
    folder_ns: int
    entries: Mapping[str, tuple[int, int]]

    def adds_to(self, before: Stamp) -> bool:
        """Return whether a file other than config.pbtxt is new or changed since `before`."""
        return any(before.entries.get(path) != entry for path, entry in self.entries.items())


def folder_stamp(folder: Path) -> Stamp:
    """Return the current state of the files in `folder`; links are followed.

    Files that are deleted during the call do not count.
    """
    entries: dict[str, tuple[int, int]] = {}
    config_ns = folder_ns = 0
    seen: set[str] = set()
    for directory, below, names in os.walk(folder, followlinks=True):
        here = Path(directory)
        resolved = os.path.realpath(here)
        if resolved in seen:  # a cycle of links
            below.clear()
            continue
        seen.add(resolved)
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
    """The model repositories; each is a namespace if they are `namespaced`."""

    def __init__(self, paths: Sequence[Path], *, namespaced: bool = False) -> None:
        self._paths = tuple(paths)
        self._namespaces = tuple(str(path) if namespaced else "" for path in paths)

    def directories(self) -> dict[ModelId, list[Path]]:
        """Return the folders of each model, including hidden folders.

        A model with several folders is ambiguous. Raises ServerError if a repository is missing or
        is not a directory.
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
        """Return the models of this name; for an unknown name, its id in `namespace`."""
        found = {
            ModelId(name, namespace): None
            for repository, namespace in zip(self._paths, self._namespaces, strict=True)
            if (repository / name).is_dir()
        }
        return list(found) or [ModelId(name, namespace)]

    def find(self, model: ModelId) -> ModelFolder:
        """Return the folder of a model. Raises ServerError unless there is exactly one folder."""
        found = [
            path
            for repository, namespace in zip(self._paths, self._namespaces, strict=True)
            if namespace == model.namespace and (path := repository / model.name).is_dir()
        ]
        if not found:
            raise invalid_arg(MISSING)
        if len(found) > 1:
            raise invalid_arg(f"{DUPLICATE}: {', '.join(map(str, found))}")
        return ModelFolder(model, found[0])


def not_polled(name: str) -> ServerError:
    """Return the error of a load request for a model whose folder cannot be read."""
    return internal(f"failed to load '{name}', failed to poll from model repository")


def check_name(name: str, profile: TritonProfile) -> None:
    """Raise ServerError unless `name` is the name of a folder directly in a repository."""
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
    """Return the versions of `present` (ascending) that `policy` selects, ascending."""
    if policy.specific is not None:
        return tuple(version for version in present if version in policy.specific)
    if policy.latest is not None:
        return tuple(present[max(0, len(present) - policy.latest) :])
    return tuple(present)
