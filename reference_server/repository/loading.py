"""Loading the versions of one model: all or none, and the old ones serve until the new ones do."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from reference_server.config import check, schema
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.repository.ensembles import check_composing_models
from reference_server.repository.loader import ModelLoader
from reference_server.repository.model_folders import wanted_versions
from reference_server.repository.polling import Polled
from reference_server.repository.versions import Book, ServedModel, State, VersionRecord

log = logging.getLogger(__name__)


class Loading:
    """Brings models into service and takes them out, and notes it in the book.

    Any thread, but one at a time for each model. Models that leave are not finalized here.
    """

    def __init__(self, book: Book, loader: ModelLoader, retries: int) -> None:
        """retries: how often a version that fails is tried again."""
        self._book = book
        self._loader = loader
        self._retries = retries
        self._current: dict[str, Polled] = {}  # what the serving models were loaded from

    def check_ensemble(self, polled: Polled) -> None:
        """Raise ServerError if an ensemble does not fit the models that are loaded."""
        check.check_loaded(polled.config)
        check_composing_models(
            ModelConfig.from_proto(polled.config),
            lambda name, version: self._book.find(name, version).config,
        )

    def load(self, polled: Polled, retired: list[ServedModel]) -> None:
        """Load all versions that are wanted; what serves no more is added to `retired`.

        Versions whose files are as they were, and whose configuration differs in its instances at
        most, keep their statistics; if nothing differs, they serve on. Raises ServerError if one
        version fails, and then those before serve on.
        """
        name = polled.folder.name
        versions = wanted_versions(schema.version_policy(polled.config), polled.folder.versions())
        serving = {served.version: served for served in self._book.ready(name)}
        if not versions:
            self._book.enter(name)
            raise invalid_arg(
                f"at least one version must be available under the version policy of model '{name}'"
            )
        alike = self._is_alike(polled)
        fresh: dict[int, ServedModel] = {}
        failed: dict[int, ServerError] = {}
        self._book.enter(
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
                fresh[version] = self._load_version(polled, version, old)
            except ServerError as error:
                failed[version] = error
        if failed:
            self._give_up(name, serving, fresh, failed, retired)
            if alike:
                # As in Triton, which changes the instances of the version that serves.
                self._book.enter(
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
        self._current[name] = polled
        leaving = [served for served in serving.values() if served is not fresh.get(served.version)]
        self._book.enter(
            name,
            [
                *(VersionRecord(v, State.READY, served=served) for v, served in fresh.items()),
                *_unloading(served for served in leaving if served.version not in fresh),
            ],
        )
        retired += leaving

    def _is_alike(self, polled: Polled) -> bool:
        """Whether the serving versions differ from `polled` in their instances at most."""
        before = self._current.get(polled.folder.name)
        return (
            before is not None
            and before.stamp is not None
            and polled.stamp is not None
            and not polled.is_ensemble
            and not polled.stamp.adds_to(before.stamp)
            and polled.equals_but_for_instances(before)
        )

    def _load_version(self, polled: Polled, version: int, old: ServedModel | None) -> ServedModel:
        """The version, loaded; `old` serves already and has the same files.

        Raises ServerError if the last try fails, too.
        """
        name = polled.folder.name
        if old is not None and self._current[name].config == polled.config:
            return old
        log.info("loading: %s:%d", name, version)
        statistics = None if old is None else old.statistics
        retries = self._retries
        while True:
            try:
                served = self._loader.load(
                    polled.folder, polled.config, version, self._book.find, statistics
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
        name: str,
        serving: dict[int, ServedModel],
        fresh: dict[int, ServedModel],
        failed: dict[int, ServerError],
        retired: list[ServedModel],
    ) -> None:
        """Versions were loaded in vain, since others `failed`."""
        in_vain = [served for served in fresh.values() if served is not serving.get(served.version)]
        self._book.enter(
            name,
            [
                *(
                    VersionRecord(version, State.UNAVAILABLE, error.described())
                    for version, error in failed.items()
                    if version not in serving
                ),
                *_unloading(served for served in in_vain if served.version not in serving),
            ],
        )
        retired += in_vain

    def withdraw(self, name: str) -> list[ServedModel]:
        """Take all versions of a model out of service; returns them."""
        serving = self._book.ready(name)
        if serving:
            self._book.enter(name, _unloading(serving))
        self._current.pop(name, None)
        return serving


def _unloading(models: Iterable[ServedModel]) -> list[VersionRecord]:
    return [VersionRecord(served.version, State.UNLOADING, served=served) for served in models]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operation is to load: the models, wave by wave, and those that cannot be."""

    waves: Sequence[Sequence[str]]
    polled: Mapping[str, Polled]
    errors: Mapping[str, ServerError]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan so far.

    `failed` are the errors by model, of which those `attempted` failed only when they were loaded;
    `retired` are the models that serve no more.
    """

    failed: dict[str, ServerError] = field(default_factory=dict)
    attempted: set[str] = field(default_factory=set)
    retired: list[ServedModel] = field(default_factory=list)


class PlanLoader:
    """Loads what plans name, `load_threads` models at a time. Any thread."""

    def __init__(self, book: Book, loading: Loading, load_threads: int) -> None:
        self._book = book
        self._loading = loading
        self._load_threads = load_threads

    def load(self, plan: Plan, before: Mapping[str, ServerError], outcome: Outcome) -> None:
        """Load all of the plan, and note in `outcome` what became of it. Blocks.

        `before` are the errors of models that were to be loaded earlier.
        """
        outcome.failed.update(plan.errors)
        for wave in plan.waves:
            if len(wave) == 1:
                self._load_one(plan, wave[0], before, outcome)
            else:
                with ThreadPoolExecutor(self._load_threads, "load") as pool:
                    list(pool.map(lambda name: self._load_one(plan, name, before, outcome), wave))

    def _load_one(
        self, plan: Plan, name: str, before: Mapping[str, ServerError], outcome: Outcome
    ) -> None:
        polled = plan.polled[name]
        try:
            self._check(polled, before, outcome)
            outcome.attempted.add(name)
            self._loading.load(polled, outcome.retired)
        except ServerError as error:
            outcome.failed[name] = error
            log.error("failed to load '%s': %s", name, error.described())
            if not plan.polled.keys().isdisjoint(polled.steps):
                # It would go on with models that may have been replaced by now.
                outcome.retired.extend(self._loading.withdraw(name))

    def _check(self, polled: Polled, before: Mapping[str, ServerError], outcome: Outcome) -> None:
        """Raise ServerError if a model cannot work with those that are there; then it leaves."""
        name = polled.folder.name
        try:
            if name in outcome.failed:
                raise outcome.failed[name]
            if polled.is_ensemble:
                self.check_steps(polled, outcome.failed, before)
                self._loading.check_ensemble(polled)
        except ServerError:
            outcome.retired.extend(self._loading.withdraw(name))
            raise

    def check_steps(self, polled: Polled, *errors: Mapping[str, ServerError]) -> None:
        """Raise ServerError unless the models that an ensemble uses are loaded as it needs them.

        `errors` tell why others are not loaded, the newest first.
        """
        name = polled.folder.name
        for step, wanted in sorted(polled.steps.items()):
            loaded = {served.version for served in self._book.ready(step)}
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
