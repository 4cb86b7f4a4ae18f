"""Puts models into service together, takes them out of service and finalizes them.

Models are loaded in waves: a model is loaded before the ensembles that use it. The old versions of
a model serve until all new versions are loaded. Then the old versions are drained in the
background.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from reference_server.config import check, schema
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.repository.ensembles import check_composing_models
from reference_server.repository.loader import Find, ModelLoader
from reference_server.repository.model_folders import ModelId, wanted_versions
from reference_server.repository.polling import ModelSource
from reference_server.repository.versions import ServedModel, State, VersionRecord, VersionRegistry

log = logging.getLogger(__name__)

#: The models of an ensemble's steps, by the names in its configuration.
StepIds = Mapping[str, ModelId]


class Rollout:
    """Puts models into service and takes them out of service, and updates the registry.

    Thread-safe, but only one thread at a time may use it for the same model. It does not finalize
    models.

    Args:
        registry: The registry to update.
        loader: Loads one version.
        retries: The number of retries after a version has failed to load.
    """

    def __init__(self, registry: VersionRegistry, loader: ModelLoader, retries: int) -> None:
        self._registry = registry
        self._loader = loader
        self._retries = retries
        self._current: dict[ModelId, ModelSource] = {}  # the sources of the serving models

    def check_ensemble(self, source: ModelSource, step_ids: StepIds) -> None:
        """Raise ServerError if an ensemble does not fit its loaded composing models."""
        check.check_loaded(source.config, self._loader.profile)
        find = self._finder(step_ids)
        check_composing_models(
            ModelConfig.from_proto(source.config), lambda name, version: find(name, version).config
        )

    def _finder(self, step_ids: StepIds) -> Find:
        return lambda name, version: self._registry.find(step_ids.get(name, name), version)

    def load(self, source: ModelSource, step_ids: StepIds, retired: list[ServedModel]) -> None:
        """Load all versions that the version policy selects, and put them into service.

        A serving version is kept if its files are unchanged and the configuration differs at most
        in instance groups and version policy. Its instances are changed if necessary.

        Args:
            source: The model to load.
            step_ids: The models of an ensemble's steps.
            retired: Receives the versions that are taken out of service.

        Raises:
            ServerError: A version failed. The versions that served before still serve.
        """
        name = source.folder.id
        versions = wanted_versions(schema.version_policy(source.config), source.folder.versions())
        serving = {served.version: served for served in self._registry.ready(name)}
        if not versions:
            self._registry.enter(name)
            raise invalid_arg(
                f"at least one version must be available under the version policy of model '{name}'"
            )
        keeps = self._keeps_versions(source)
        # `serving` stays in the registry until all of `loaded` is complete.
        loaded: dict[int, ServedModel] = {}
        failed: dict[int, ServerError] = {}
        self._registry.enter(
            name,
            [
                VersionRecord(version, State.LOADING)
                for version in versions
                if version not in serving
            ],
        )
        for version in versions:
            old = serving.get(version) if keeps else None
            try:
                loaded[version] = self._load_version(source, step_ids, version, old)
            except ServerError as error:
                failed[version] = error
        if failed:
            self._discard(name, serving, loaded, failed, retired)
            if keeps:
                # As in Triton, which changes the instances of the serving version.
                self._registry.enter(
                    name,
                    [
                        VersionRecord(version, State.READY, failed[version].described(), served)
                        for version, served in serving.items()
                        if version in failed
                    ],
                )
            state = State.READY if keeps else State.UNAVAILABLE
            raise invalid_arg(
                "".join(
                    f"version {version} is at "
                    f"{(state if version in serving else State.UNAVAILABLE).value} state: "
                    f"{error.described()};"
                    for version, error in failed.items()
                )
            )
        self._current[name] = source
        leaving = [old for old in serving.values() if not _is_kept(old, loaded)]
        self._registry.enter(
            name,
            [
                *(VersionRecord(v, State.READY, served=served) for v, served in loaded.items()),
                *_unloading(served for served in leaving if served.version not in loaded),
            ],
        )
        retired += leaving

    def _keeps_versions(self, source: ModelSource) -> bool:
        """Return whether the serving versions can be kept: only their instances may differ."""
        before = self._current.get(source.folder.id)
        return (
            before is not None
            and before.stamp is not None
            and source.stamp is not None
            and not source.is_ensemble
            and not source.stamp.adds_to(before.stamp)
            and source.equals_but_for_instances(before)
        )

    def _load_version(
        self, source: ModelSource, step_ids: StepIds, version: int, old: ServedModel | None
    ) -> ServedModel:
        """Load a version. If `old` is given, keep it and change only its instances.

        Raises ServerError if the last attempt fails.
        """
        name = source.folder.id
        if old is not None and old.config.has_groups_of(source.config):
            return old
        log.info("loading: %s:%d", name, version)
        retries = self._retries
        while True:
            try:
                served = (
                    self._loader.load(source.folder, source.config, version, self._finder(step_ids))
                    if old is None
                    else self._loader.change_instances(old, source.folder, source.config)
                )
            except ServerError as error:
                log.error("failed to load '%s' version %d: %s", name, version, error.cured())
                if not retries:
                    raise
                retries -= 1
            else:
                log.info("successfully loaded '%s'", name)
                return served

    def _discard(
        self,
        name: ModelId,
        serving: dict[int, ServedModel],
        loaded: dict[int, ServedModel],
        failed: dict[int, ServerError],
        retired: list[ServedModel],
    ) -> None:
        """Retire the new versions in `loaded`, because other versions `failed`."""
        unused = [new for new in loaded.values() if not _is_kept(new, serving)]
        self._registry.enter(
            name,
            [
                *(
                    VersionRecord(version, State.UNAVAILABLE, error.described())
                    for version, error in failed.items()
                    if version not in serving
                ),
                *_unloading(served for served in unused if served.version not in serving),
                # Kept versions, which have other instances now.
                *(
                    VersionRecord(new.version, State.READY, served=new)
                    for new in loaded.values()
                    if _is_kept(new, serving)
                ),
            ],
        )
        retired += unused

    def withdraw(self, name: ModelId) -> list[ServedModel]:
        """Take all versions of a model out of service, and return them."""
        serving = self._registry.ready(name)
        if serving:
            self._registry.enter(name, _unloading(serving))
        self._current.pop(name, None)
        return serving


def _is_kept(served: ServedModel, others: Mapping[int, ServedModel]) -> bool:
    """Return whether one of `others` is the same loaded version, possibly with other instances."""
    other = others.get(served.version)
    return other is not None and other.scheduler is served.scheduler


def _unloading(models: Iterable[ServedModel]) -> list[VersionRecord]:
    return [VersionRecord(served.version, State.UNLOADING, served=served) for served in models]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The models that an operation loads, in waves.

    `step_ids` has the models of the steps of each ensemble. `errors` has the errors of models that
    cannot be loaded.
    """

    waves: Sequence[Sequence[ModelId]]
    sources: Mapping[ModelId, ModelSource]
    step_ids: Mapping[ModelId, StepIds]
    errors: Mapping[ModelId, ServerError]


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The results of a plan.

    `failed` has the errors by model. A failed model in `attempted` passed the checks and failed
    while it was loaded. `retired` are the versions taken out of service.
    """

    failed: dict[ModelId, ServerError] = field(default_factory=dict)
    attempted: set[ModelId] = field(default_factory=set)
    retired: list[ServedModel] = field(default_factory=list)


class LoadPlanRunner:
    """Executes load plans, `load_threads` models at a time. Thread-safe."""

    def __init__(self, registry: VersionRegistry, rollout: Rollout, load_threads: int) -> None:
        self._registry = registry
        self._rollout = rollout
        self._load_threads = load_threads

    def load(
        self, plan: LoadPlan, before: Mapping[ModelId, ServerError], outcome: LoadOutcome
    ) -> None:
        """Load all models of the plan, and add the results to `outcome`. Blocks.

        `before` has the errors of earlier load operations, by model.
        """
        outcome.failed.update(plan.errors)
        for wave in plan.waves:
            if len(wave) == 1:
                self._load_one(plan, wave[0], before, outcome)
            else:
                # `list` re-raises unexpected exceptions of the workers.
                with ThreadPoolExecutor(self._load_threads, "load") as pool:
                    list(pool.map(lambda name: self._load_one(plan, name, before, outcome), wave))

    def _load_one(
        self,
        plan: LoadPlan,
        name: ModelId,
        before: Mapping[ModelId, ServerError],
        outcome: LoadOutcome,
    ) -> None:
        source, step_ids = plan.sources[name], plan.step_ids[name]
        try:
            self._check(source, step_ids, before, outcome)
            outcome.attempted.add(name)
            self._rollout.load(source, step_ids, outcome.retired)
        except ServerError as error:
            outcome.failed[name] = error
            log.error("failed to load '%s': %s", name, error.described())
            if not plan.sources.keys().isdisjoint(step_ids.values()):
                # The old versions of the ensemble use models that may have been replaced.
                outcome.retired.extend(self._rollout.withdraw(name))

    def _check(
        self,
        source: ModelSource,
        step_ids: StepIds,
        before: Mapping[ModelId, ServerError],
        outcome: LoadOutcome,
    ) -> None:
        """Check that a model can be loaded. If not, withdraw it and raise ServerError."""
        name = source.folder.id
        try:
            if name in outcome.failed:
                raise outcome.failed[name]
            if source.is_ensemble:
                self.check_steps(source, step_ids, outcome.failed, before)
                self._rollout.check_ensemble(source, step_ids)
        except ServerError:
            outcome.retired.extend(self._rollout.withdraw(name))
            raise

    def check_steps(
        self, source: ModelSource, step_ids: StepIds, *errors: Mapping[ModelId, ServerError]
    ) -> None:
        """Raise ServerError unless the required versions of an ensemble's models are loaded.

        `errors` has the load errors of other models, the newest mapping first.
        """
        name = source.folder.id
        for step_name, wanted in sorted(source.steps.items()):
            step = step_ids.get(step_name, ModelId(step_name))
            loaded = {served.version for served in self._registry.ready(step)}
            if not loaded:
                error = next(filter(None, (known.get(step) for known in errors)), None)
                reason = f" Model '{step}' loading failed with error: {error}" if error else ""
                raise invalid_arg(
                    f"ensemble '{name}' depends on '{step}' which has no loaded version.{reason}"
                )
            for version in sorted(wanted - loaded):
                raise invalid_arg(
                    f"ensemble '{name}' depends on '{step}' whose required version {version} is "
                    "not loaded."
                )


class Draining:
    """Finalizes models that are out of service, in parallel background threads. Thread-safe.

    An ensemble is finalized before the models of its steps. Apart from that, a model that hangs
    does not delay other models. `wait_submitted` blocks until every request whose model was looked
    up before has been submitted to its scheduler.
    """

    def __init__(self, registry: VersionRegistry, wait_submitted: Callable[[], None]) -> None:
        self._registry = registry
        self._wait_submitted = wait_submitted
        self._lock = threading.Lock()
        self._leaving: dict[ServedModel, threading.Event] = {}

    @property
    def leaving(self) -> set[ServedModel]:
        """Models that are not finalized yet."""
        with self._lock:
            return set(self._leaving)

    def start(self, models: Sequence[ServedModel]) -> None:
        """Start to finalize `models`, each on its own thread. Does not block."""
        with self._lock:
            self._leaving.update((served, threading.Event()) for served in models)
            users = [
                [gone for other, gone in self._leaving.items() if _uses(other, served)]
                for served in models
            ]
        for served, waits in zip(models, users, strict=True):
            # A daemon thread: a model that hangs must not keep the process alive.
            threading.Thread(
                target=self._drain, args=(served, waits), name="drain", daemon=True
            ).start()

    def join(self) -> None:
        """Wait until all started models are finalized."""
        with self._lock:
            leaving = list(self._leaving.values())
        for gone in leaving:
            gone.wait()

    def _drain(self, served: ServedModel, users: Sequence[threading.Event]) -> None:
        try:
            for gone in users:
                gone.wait()
            # Requests that looked up the model just before it left the registry are served too.
            self._wait_submitted()
            served.scheduler.close()
            log.info("successfully unloaded '%s' version %d", served.id, served.version)
            self._registry.unloaded(served)
            if served.files is not None:
                served.files.release()
        finally:
            with self._lock:
                gone = self._leaving.pop(served)
            gone.set()


def _uses(other: ServedModel, served: ServedModel) -> bool:
    """Return whether `other` is an ensemble that may have been loaded with `served`."""
    return other.order > served.order and any(
        step.model_name == served.config.name for step in other.config.ensemble
    )
