"""The models of the repositories: load, find, reload, unload, close.

Operations on different models run side by side. Those that touch the same model, be it through an
ensemble, take turns: each claims the models that it touches before it changes anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.repository.draining import Draining
from reference_server.repository.ensembles import DependencyGraph
from reference_server.repository.loader import ModelLoader
from reference_server.repository.loading import LoadOutcome, LoadPlan, LoadPlanRunner, Rollout
from reference_server.repository.model_folders import (
    FileDirectory,
    Override,
    Repositories,
    not_polled,
)
from reference_server.repository.model_ids import ModelId
from reference_server.repository.polling import ModelSource, Poller, PollResult
from reference_server.repository.versions import (
    IndexEntry,
    ServedModel,
    VersionRegistry,
    VersionStatus,
    index_entries,
    version_statuses,
)

log = logging.getLogger(__name__)


class Repository:
    """All models of a server. Every method may be called by any thread; loading blocks.

    Names may be shared by models of several repositories if these are `namespaced`.

    `handed_over` returns when every request whose model was found before has been given to it, and
    must not be waited for by whoever gives them.
    """

    def __init__(
        self,
        repositories: Sequence[Path],
        loader: ModelLoader,
        load_threads: int,
        load_retries: int = 0,
        handed_over: Callable[[], None] = lambda: None,
        *,
        namespaced: bool = False,
    ) -> None:
        self._poller = Poller(Repositories(repositories, namespaced=namespaced), loader)
        self._registry = VersionRegistry()
        #: The loaded model; LATEST is its greatest version. Raises ServerError NOT_FOUND, or
        #: UNAVAILABLE for a version that is not ready. Bound as it is: every request asks it.
        self.find = self._registry.find_named if namespaced else self._registry.find
        self.is_namespaced = namespaced
        self._draining = Draining(self._registry, handed_over)
        self._rollout = Rollout(self._registry, loader, load_retries)
        self._plans = LoadPlanRunner(self._registry, self._rollout, load_threads)
        # What follows is read and changed under this lock; it is never held while a model loads.
        self._changed = threading.Condition()
        self._graph = DependencyGraph()
        self._sources: dict[ModelId, ModelSource] = {}
        self._claimed: set[ModelId] = set()
        self._errors: dict[ModelId, ServerError] = {}  # of models that could be read, not loaded
        self._unreadable: dict[ModelId, ServerError] = {}

    # ------------------------------------------------------------------------------- changing

    def load_all(self) -> bool:
        """Load every model that is new or changed, and unload those whose folders are gone.

        Models that fail are logged and keep their reasons; the others go on. False if there is
        one. Raises ServerError only if a repository itself cannot be read.
        """
        names = self._poller.models()
        with self._changed:
            # It may touch any model, so it waits for all others, and not for some as `_load` does.
            self._changed.wait_for(lambda: not self._claimed)
            found = self._poller.poll(names, self._sources)
            # One that is there but cannot be read goes on to serve as it was.
            left = self._unload_now(set(self._sources) - set(names))
            plan = self._take_over(found, left)
        self._carry_out(plan)
        with self._changed:
            return not self._errors and not self._unreadable

    def load_named(self, names: Iterable[str]) -> bool:
        """Load these models and what they use. False if one failed or is nowhere.

        Raises ServerError if a repository cannot be read.
        """
        self._poller.directories()
        return not self._load({model for name in names for model in self._poller.called(name)})

    def load(self, name: str, override: Override | None = None) -> None:
        """Load a model and what it uses, or load it again if anything has changed.

        While it is loaded again, the old one serves; if that fails, it goes on to do so. Raises
        ServerError with the reason of a failure.
        """
        models = self._poller.called(name)
        errors = self._load(set(models), override)
        for model in models:
            if model in errors:
                raise errors[model]

    def _load(
        self, names: set[ModelId], override: Override | None = None
    ) -> dict[ModelId, ServerError]:
        """Load these models; returns the errors of those that failed, as clients get them."""
        try:
            files = FileDirectory(override.files) if override and override.files else None
        except ServerError as error:
            log.error("cannot load %s with these files: %s", ", ".join(sorted(names)), error)
            return {model: not_polled(model.name) for model in names}
        try:
            with self._changed:
                found = self._poller.poll(names, self._sources, override, files)
                while not self._is_free(found, names):
                    self._changed.wait()
                    # Whoever was at work may have loaded what looked changed before.
                    found = self._poller.poll(names, self._sources, override, files)
                if files is not None and not names.isdisjoint(found.changed):
                    files.hold()
                refused = {
                    model: not_polled(model.name)
                    for model in names - set(found.changed)
                    if not self._graph.used({model}).isdisjoint(found.failed)
                }
                plan = self._take_over(found)
                for name in names - set(refused) - set(plan.sources):
                    # It is as it was, and may be as little to be loaded as it was.
                    if not self._registry.ready(name):
                        refused[name] = internal(
                            f"failed to load '{name.name}', no version is available"
                        )
        finally:
            if files is not None:
                files.release()
        failed = self._carry_out(plan)
        return refused | {
            model: invalid_arg(f"load failed for model '{model}': {failed[model].message}\n")
            for model in names & set(failed)
        }

    def _is_free(self, found: PollResult, names: set[ModelId]) -> bool:
        """Whether nobody else is at work on what would be changed, or used by that."""
        changed = names.union(found.changed)
        touched = changed | self._graph.users(changed)
        used = self._graph.used(touched)
        for model, source in found.changed.items():
            for step in source.steps:
                used.update(self._graph.called(step) or [ModelId(step, model.namespace)])
        return self._claimed.isdisjoint(touched | used)

    def _take_over(self, found: PollResult, others: Collection[ModelId] = ()) -> LoadPlan:
        """Take over what a poll found, and claim what that touches. Under the lock.

        `others` are to be loaded again as well.
        """
        self._unreadable.update(found.failed)
        for name in found.read:
            self._unreadable.pop(name, None)
        for name, source in found.changed.items():
            self._remember(name, source)
            self._graph.put(name, source.steps, explicit=source.explicit)
        touched = set(found.changed) | self._graph.users(found.changed) | set(others)
        self._claimed |= touched
        return LoadPlan(
            list(self._graph.waves(touched)),
            {name: self._sources[name] for name in touched},
            {name: self._graph.meant(name) for name in touched},
            self._graph.errors(touched),
        )

    def _carry_out(self, plan: LoadPlan) -> dict[ModelId, ServerError]:
        """Load what the plan names, then release it. Returns the errors, by model."""
        outcome = LoadOutcome()
        try:
            self._plans.load(plan, self._errors, outcome)
        finally:
            with self._changed:
                for name, source in plan.sources.items():
                    self._errors.pop(name, None)
                    if name in outcome.failed:
                        self._errors[name] = outcome.failed[name]
                    failed = name in outcome.failed and name in outcome.attempted
                    self._remember(name, source.after(failed=failed))
                self._claimed.difference_update(plan.sources)
                self._changed.notify_all()
            self._draining.begin(outcome.retired)
        return outcome.failed

    def unload(self, name: str, *, with_unused: bool = False) -> None:
        """Take a model out of service, and the ensembles that use it. Returns at once.

        Requests in flight are answered before the models are finalized. `with_unused` takes along
        what an ensemble used, unless that is used by others or was loaded by name.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._claimed.isdisjoint(self._reach(name)))
            self._unload_now(set(self._graph.called(name)), with_unused=with_unused)

    def _reach(self, name: str) -> set[ModelId]:
        """All models that an unloading of `name` may touch."""
        used = self._graph.used(self._graph.called(name) or [ModelId(name)])
        return used | self._graph.users(used)

    def _unload_now(self, names: set[ModelId], *, with_unused: bool = False) -> set[ModelId]:
        """Unload, and what cannot go on without.

        Returns the ensembles that can, with another model of the same name.
        """
        removed = self._graph.remove(names, with_unused=with_unused)
        users = self._graph.users(removed)
        retired: list[ServedModel] = []
        for name in sorted(removed):
            self._errors.pop(name, None)
            self._unreadable.pop(name, None)
            self._release(self._sources.pop(name))
            retired.extend(self._rollout.withdraw(name))
            self._registry.forget(name)
        errors = self._graph.errors(users)
        left = set()
        for name in (name for wave in self._graph.waves(users) for name in wave):
            try:
                if name in errors:
                    raise errors[name]
                self._plans.check_steps(self._sources[name], self._graph.meant(name), self._errors)
            except ServerError as error:
                log.error("%s", error.described())
                self._errors[name] = error
                retired.extend(self._rollout.withdraw(name))
            else:
                left.add(name)
        self._draining.begin(retired)
        return left

    def _remember(self, name: ModelId, source: ModelSource) -> None:
        """Remember what a model is to be loaded from, and let go of what was known before."""
        before = self._sources.get(name)
        self._sources[name] = source
        if before is not None and before.folder is not source.folder:
            self._release(before)

    @staticmethod
    def _release(source: ModelSource) -> None:
        if source.folder.temporary is not None:
            source.folder.temporary.release()

    def refuse(self) -> None:
        """Have all models take no new requests; those taken go on."""
        for served in self.all():
            served.scheduler.refuse()

    def close(self) -> None:
        """Answer what was taken, then finalize all models, users before what they use."""
        names = self._registry.names()
        self._draining.begin([served for name in names for served in self._rollout.withdraw(name)])
        self._draining.join()
        with self._changed:
            for source in self._sources.values():
                self._release(source)
            self._sources.clear()

    # -------------------------------------------------------------------------------- reading

    def versions(self, name: str) -> list[ServedModel]:
        """The loaded versions of a model, ascending; none if it is unknown or failed."""
        try:
            return self._registry.ready(self._registry.named(name))
        except ServerError:
            return []

    def all(self) -> list[ServedModel]:
        """All loaded versions of all models, by name, then version."""
        return [served for name in self._registry.names() for served in self._registry.ready(name)]

    def in_flight(self) -> list[tuple[str, int, int]]:
        """Models, their versions, and how many requests each has that a stop waits for."""
        return [
            (served.config.name, served.version, count)
            for served in self.all()
            if (count := served.scheduler.in_flight)
        ]

    @property
    def live(self) -> int:
        """How many loaded versions are not finalized yet, those included that serve no more."""
        return len(self._draining.leaving.union(self.all()))

    def index(self, *, ready_only: bool = False, tells_failures: bool = False) -> list[IndexEntry]:
        """What lies in the repositories, by name, then version, and what became of it.

        With `tells_failures` versions that serve on, though a newer load of their model failed,
        have a reason that says so. Raises ServerError if a repository cannot be read.
        """
        folders = self._poller.directories()
        errors = self._failures() if tells_failures else {}
        return index_entries(folders, self._registry, errors, ready_only=ready_only)

    def statuses(self) -> list[VersionStatus]:
        """What became of each model version that was to be loaded, by name, then version."""
        return version_statuses(self._registry, self._failures())

    def _failures(self) -> dict[ModelId, ServerError]:
        """The errors of models whose newest load failed."""
        with self._changed:
            return {**self._errors, **self._unreadable}

    @property
    def is_complete(self) -> bool:
        """True if every version that was to be loaded is ready, or unloaded on request."""
        return self._registry.is_as_wanted
