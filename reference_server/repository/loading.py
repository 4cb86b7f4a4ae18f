"""Loading all that an operation names, and all versions of one model: all or none.

Models are loaded wave by wave, what is used before its users. The old versions of a model serve
until the new ones do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from reference_server.config import check, schema
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.repository.ensembles import check_composing_models
from reference_server.repository.loader import Find, ModelLoader
from reference_server.repository.model_folders import wanted_versions
from reference_server.repository.model_ids import ModelId
from reference_server.repository.polling import ModelSource
from reference_server.repository.versions import ServedModel, State, VersionRecord, VersionRegistry

log = logging.getLogger(__name__)

#: The models that an ensemble means by the names of its steps.
Meant = Mapping[str, ModelId]


class Rollout:
    """Brings models into service and takes them out, and notes it in the registry.

    Any thread, but one at a time for each model. Models that leave are not finalized here.
    """

    def __init__(self, registry: VersionRegistry, loader: ModelLoader, retries: int) -> None:
        """retries: how often a version that fails is tried again."""
        self._registry = registry
        self._loader = loader
        self._retries = retries
        self._current: dict[ModelId, ModelSource] = {}  # what the serving models were loaded from

    def check_ensemble(self, source: ModelSource, meant: Meant) -> None:
        """Raise ServerError if an ensemble does not fit the models that are loaded."""
        check.check_loaded(source.config, self._loader.profile)
        find = self._finder(meant)
        check_composing_models(
            ModelConfig.from_proto(source.config), lambda name, version: find(name, version).config
        )

    def _finder(self, meant: Meant) -> Find:
        return lambda name, version: self._registry.find(meant.get(name, name), version)

    def load(self, source: ModelSource, meant: Meant, retired: list[ServedModel]) -> None:
        """Load all versions that are wanted; what serves no more is added to `retired`.

        `meant` are the models that an ensemble means by the names of its steps.

        Versions whose files are as they were, and whose configuration differs in its instances and
        in its version policy at most, serve on, on other instances if need be. Raises ServerError
        if one version fails, and then those before serve on.
        """
        name = source.folder.id
        versions = wanted_versions(schema.version_policy(source.config), source.folder.versions())
        serving = {served.version: served for served in self._registry.ready(name)}
        if not versions:
            self._registry.enter(name)
            raise invalid_arg(
                f"at least one version must be available under the version policy of model '{name}'"
            )
        alike = self._is_alike(source)
        # `serving` stays in the registry, and answers, until all of `fresh` is loaded.
        fresh: dict[int, ServedModel] = {}
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
            old = serving.get(version) if alike else None
            try:
                fresh[version] = self._load_version(source, meant, version, old)
            except ServerError as error:
                failed[version] = error
        if failed:
            self._give_up(name, serving, fresh, failed, retired)
            if alike:
                # As in Triton, which changes the instances of the version that serves.
                self._registry.enter(
                    name,
                    [
                        VersionRecord(version, State.READY, failed[version].described(), served)
                        for version, served in serving.items()
                        if version in failed
                    ],
                )
            state = State.READY if alike else State.UNAVAILABLE
            raise invalid_arg(
                "".join(
                    f"version {version} is at "
                    f"{(state if version in serving else State.UNAVAILABLE).value} state: "
                    f"{error.described()};"
                    for version, error in failed.items()
                )
            )
        self._current[name] = source
        leaving = [old for old in serving.values() if not _goes_on(old, fresh)]
        self._registry.enter(
            name,
            [
                *(VersionRecord(v, State.READY, served=served) for v, served in fresh.items()),
                *_unloading(served for served in leaving if served.version not in fresh),
            ],
        )
        retired += leaving

    def _is_alike(self, source: ModelSource) -> bool:
        """Whether the serving versions differ from `source` in their instances at most."""
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
        self, source: ModelSource, meant: Meant, version: int, old: ServedModel | None
    ) -> ServedModel:
        """The version, loaded; `old` serves already and has the same files.

        Raises ServerError if the last try fails, too.
        """
        name = source.folder.id
        if old is not None and old.config.has_groups_of(source.config):
            return old
        log.info("loading: %s:%d", name, version)
        retries = self._retries
        while True:
            try:
                served = (
                    self._loader.load(source.folder, source.config, version, self._finder(meant))
                    if old is None
                    else self._loader.change_instances(old, source.folder, source.config)
                )
            except ServerError as error:
                log.error("failed to load '%s' version %d: %s", name, version, error.described())
                if not retries:
                    raise
                retries -= 1
            else:
                log.info("successfully loaded '%s'", name)
                return served

    def _give_up(
        self,
        name: ModelId,
        serving: dict[int, ServedModel],
        fresh: dict[int, ServedModel],
        failed: dict[int, ServerError],
        retired: list[ServedModel],
    ) -> None:
        """Versions were loaded in vain, since others `failed`."""
        in_vain = [new for new in fresh.values() if not _goes_on(new, serving)]
        self._registry.enter(
            name,
            [
                *(
                    VersionRecord(version, State.UNAVAILABLE, error.described())
                    for version, error in failed.items()
                    if version not in serving
                ),
                *_unloading(served for served in in_vain if served.version not in serving),
                # Those that have other instances now, in their place.
                *(
                    VersionRecord(new.version, State.READY, served=new)
                    for new in fresh.values()
                    if _goes_on(new, serving)
                ),
            ],
        )
        retired += in_vain

    def withdraw(self, name: ModelId) -> list[ServedModel]:
        """Take all versions of a model out of service; returns them."""
        serving = self._registry.ready(name)
        if serving:
            self._registry.enter(name, _unloading(serving))
        self._current.pop(name, None)
        return serving


def _goes_on(served: ServedModel, others: Mapping[int, ServedModel]) -> bool:
    """Whether one of `others` is the same loaded version, maybe on other instances."""
    other = others.get(served.version)
    return other is not None and other.scheduler is served.scheduler


def _unloading(models: Iterable[ServedModel]) -> list[VersionRecord]:
    return [VersionRecord(served.version, State.UNLOADING, served=served) for served in models]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What an operation is to load: the models, wave by wave, and those that cannot be.

    `meant` are the models that each means by the names of its steps.
    """

    waves: Sequence[Sequence[ModelId]]
    sources: Mapping[ModelId, ModelSource]
    meant: Mapping[ModelId, Meant]
    errors: Mapping[ModelId, ServerError]


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What became of a plan so far.

    `failed` are the errors by model, of which those `attempted` failed only when they were loaded;
    `retired` are the models that serve no more.
    """

    failed: dict[ModelId, ServerError] = field(default_factory=dict)
    attempted: set[ModelId] = field(default_factory=set)
    retired: list[ServedModel] = field(default_factory=list)


class LoadPlanRunner:
    """Loads what plans name, `load_threads` models at a time. Any thread."""

    def __init__(self, registry: VersionRegistry, rollout: Rollout, load_threads: int) -> None:
        self._registry = registry
        self._rollout = rollout
        self._load_threads = load_threads

    def load(
        self, plan: LoadPlan, before: Mapping[ModelId, ServerError], outcome: LoadOutcome
    ) -> None:
        """Load all of the plan, and note in `outcome` what became of it. Blocks.

        `before` are the errors of models that were to be loaded earlier.
        """
        outcome.failed.update(plan.errors)
        for wave in plan.waves:
            if len(wave) == 1:
                self._load_one(plan, wave[0], before, outcome)
            else:
                # `list` brings a defect's exception, which the pool would keep to itself.
                with ThreadPoolExecutor(self._load_threads, "load") as pool:
                    list(pool.map(lambda name: self._load_one(plan, name, before, outcome), wave))

    def _load_one(
        self,
        plan: LoadPlan,
        name: ModelId,
        before: Mapping[ModelId, ServerError],
        outcome: LoadOutcome,
    ) -> None:
        source, meant = plan.sources[name], plan.meant[name]
        try:
            self._check(source, meant, before, outcome)
            outcome.attempted.add(name)
            self._rollout.load(source, meant, outcome.retired)
        except ServerError as error:
            outcome.failed[name] = error
            log.error("failed to load '%s': %s", name, error.described())
            if not plan.sources.keys().isdisjoint(meant.values()):
                # It would go on with models that may have been replaced by now.
                outcome.retired.extend(self._rollout.withdraw(name))

    def _check(
        self,
        source: ModelSource,
        meant: Meant,
        before: Mapping[ModelId, ServerError],
        outcome: LoadOutcome,
    ) -> None:
        """Raise ServerError if a model cannot work with those that are there; then it leaves."""
        name = source.folder.id
        try:
            if name in outcome.failed:
                raise outcome.failed[name]
            if source.is_ensemble:
                self.check_steps(source, meant, outcome.failed, before)
                self._rollout.check_ensemble(source, meant)
        except ServerError:
            outcome.retired.extend(self._rollout.withdraw(name))
            raise

    def check_steps(
        self, source: ModelSource, meant: Meant, *errors: Mapping[ModelId, ServerError]
    ) -> None:
        """Raise ServerError unless the models that an ensemble uses are loaded as it needs them.

        `errors` tell why others are not loaded, the newest first.
        """
        name = source.folder.id
        for called, wanted in sorted(source.steps.items()):
            step = meant.get(called, ModelId(called))
            loaded = {served.version for served in self._registry.ready(step)}
            if not loaded:
                error = next(filter(None, (told.get(step) for told in errors)), None)
                reason = f" Model '{step}' loading failed with error: {error}" if error else ""
                raise invalid_arg(
                    f"ensemble '{name}' depends on '{step}' which has no loaded version.{reason}"
                )
            for version in sorted(wanted - loaded):
                raise invalid_arg(
                    f"ensemble '{name}' depends on '{step}' whose required version {version} is "
                    "not loaded."
                )
