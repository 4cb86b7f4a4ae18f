"""Polls the model repositories for new and changed models, on request or on a timer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.core.errors import ServerError, invalid_arg
from reference_server.repository.ensembles import Steps
from reference_server.repository.loader import ModelLoader
from reference_server.repository.model_files import check_sent_code
from reference_server.repository.model_folders import (
    MISSING,
    FileDirectory,
    ModelFolder,
    ModelId,
    Override,
    Repositories,
    Stamp,
    folder_stamp,
    parse_config_override,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The folder and the configuration that a model is loaded from.

    `stamp` is the state of the files. Without a stamp, or if loading `has_failed`, the next poll
    reports the model as changed. `explicit` is true if the model was requested by name.
    """

    folder: ModelFolder
    config: ConfigProto
    stamp: Stamp | None
    explicit: bool
    has_failed: bool = False

    @property
    def steps(self) -> Steps:
        """The names of the models that an ensemble uses, with the versions that it requires."""
        steps: dict[str, frozenset[int]] = {}
        for step in self.config.ensemble_scheduling.step:
            wanted = {step.model_version} - {-1}
            steps[step.model_name] = steps.get(step.model_name, frozenset()) | wanted
        return steps

    @property
    def is_ensemble(self) -> bool:
        """True if the model is a graph of other models."""
        return bool(self.config.platform == "ensemble")

    def after(self, *, failed: bool) -> ModelSource:
        """Return the source after an attempt to load it."""
        return self if failed is self.has_failed else replace(self, has_failed=failed)

    def equals_but_for_instances(self, other: ModelSource) -> bool:
        """Return whether the configurations differ at most in instance groups and versions."""
        return bool(_without_instances(self.config) == _without_instances(other.config))


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll.

    `read` are the models that could be read. `changed` has the sources of the new and changed
    models among them. `failed` has the errors of the other models.
    """

    read: set[ModelId] = field(default_factory=set)
    changed: dict[ModelId, ModelSource] = field(default_factory=dict)
    failed: dict[ModelId, ServerError] = field(default_factory=dict)


class Poller:
    """Reads the folders of the repositories. Stateless."""

    def __init__(self, repositories: Repositories, loader: ModelLoader) -> None:
        self._repositories = repositories
        self._loader = loader

    def models(self) -> list[ModelId]:
        """Return all models except hidden folders. Raises ServerError."""
        return [model for model in self.directories() if not model.name.startswith(".")]

    def directories(self) -> dict[ModelId, list[Path]]:
        """Return all folders, by model. Raises ServerError if a repository is missing."""
        return self._repositories.directories()

    def ids(self, name: str) -> list[ModelId]:
        """Return the models of this name; for an unknown name, an id without a namespace."""
        return self._repositories.ids(name)

    def poll(
        self,
        names: Iterable[ModelId],
        known: Mapping[ModelId, ModelSource],
        override: Override | None = None,
        files: FileDirectory | None = None,
    ) -> PollResult:
        """Read `names` and the models that ensembles among them use. Failures are logged.

        Args:
            names: The models to read.
            known: The sources found by earlier polls.
            override: The override of a load request; applies to `names` only.
            files: The temporary folder with the files of the override.
        """
        found = PollResult()
        explicit = set(names)
        seen: set[ModelId] = set()
        waiting = sorted(explicit)
        for name in waiting:  # grows during the loop
            if name in seen:
                continue
            seen.add(name)
            is_explicit = name in explicit
            try:
                source = self._poll(
                    name,
                    known.get(name),
                    override if is_explicit else None,
                    files if is_explicit else None,
                    explicit=is_explicit,
                )
            except ServerError as error:
                is_missing = error.message == MISSING
                failed = "failed to poll model" if is_missing else "Poll failed for model directory"
                log.error("%s '%s': %s", failed, name, error)
                found.failed[name] = error
                continue
            found.read.add(name)
            if source is not known.get(name):
                found.changed[name] = source
            for step in sorted(source.steps):
                waiting += self._repositories.ids(step, name.namespace)
        return found

    def _poll(
        self,
        name: ModelId,
        known: ModelSource | None,
        override: Override | None,
        files: FileDirectory | None,
        *,
        explicit: bool,
    ) -> ModelSource:
        if files is not None:
            folder, stamp = ModelFolder(name, files.path, files), None
        else:
            folder = self._repositories.find(name)
            stamp = folder_stamp(folder.path)
        if override is None or override.config is None:
            if override is not None and override.files:
                raise invalid_arg(
                    "Load parameter 'config' must be specified for model file override"
                )
            if known is not None and stamp == known.stamp and not known.has_failed:
                return known
            config = self._loader.read_config(folder)
        else:
            sent = parse_config_override(override.config)
            check_sent_code(sent, folder.path)
            config = self._loader.complete(folder, sent)
        return ModelSource(folder, config, stamp, explicit)


def _without_instances(config: ConfigProto) -> ConfigProto:
    """Return `config` without the fields that can change while a version serves."""
    bare = ConfigProto()
    bare.CopyFrom(config)
    bare.ClearField("instance_group")
    bare.ClearField("version_policy")
    return bare


class RepositoryWatch:
    """Calls `load_all` of a repository every `interval_s` seconds, on its own thread.

    If `interval_s` is not positive, `load_all` is never called, as in Triton.
    """

    def __init__(self, load_all: Callable[[], object], interval_s: float) -> None:
        self._load_all = load_all
        self._interval_s = interval_s
        self._stopping = threading.Event()
        # A daemon thread: a model that never finishes loading must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Start the thread; the first call is after one interval."""
        if self._interval_s > 0:
            self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a call in progress. No-op if never started."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self._load_all()
            except ServerError as error:
                log.error("failed to poll the repository: %s", error.described())
            except Exception:  # the thread must survive a defect of the server
                log.exception("failed to poll the repository")
