"""The models of the repositories: load, find, reload, unload, close.

Operations on different models run in parallel. Operations that affect the same model, directly or
through an ensemble, run one after the other: each operation claims all affected models first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from reference_server.core.errors import Code, LoadDeadlock, ServerError, internal, invalid_arg
from reference_server.repository.ensembles import DependencyGraph
from reference_server.repository.loader import ModelLoader, join_removed
from reference_server.repository.model_folders import (
    FileDirectory,
    ModelId,
    Override,
    Repositories,
    not_polled,
)
from reference_server.repository.polling import ModelSource, Poller, PollResult
from reference_server.repository.rollout import (
    Draining,
    LoadOutcome,
    LoadPlan,
    LoadPlanRunner,
    Rollout,
)
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
    """All models of a server. Thread-safe; loading blocks.

    Args:
        repositories: The folders of the model repositories.
        loader: Loads one version of a model.
        load_threads: The number of models that are loaded in parallel.
        load_retries: The number of retries after a version has failed to load.
        wait_submitted: Blocks until every request whose model was looked up before the call has
            been submitted to its scheduler. It is never called on a thread that submits requests.
        namespaced: Whether models of different repositories may have the same name.
    """

    def __init__(
        self,
        repositories: Sequence[Path],
        loader: ModelLoader,
        load_threads: int,
        load_retries: int = 0,
        wait_submitted: Callable[[], None] = lambda: None,
        *,
        namespaced: bool = False,
    ) -> None:
        self._poller = Poller(Repositories(repositories, namespaced=namespaced), loader)
        self._registry = VersionRegistry()
        #: Returns the loaded model; LATEST is its greatest version. Raises ServerError NOT_FOUND,
        #: or UNAVAILABLE for a version that is not ready. Bound directly, because every request
        #: calls it.
        self.find = self._registry.find_named if namespaced else self._registry.find
        self.is_namespaced = namespaced
        self._draining = Draining(self._registry, wait_submitted)
        self._rollout = Rollout(self._registry, loader, load_retries)
        self._plans = LoadPlanRunner(self._registry, self._rollout, load_threads)
        # Guards the following attributes; never held while a model loads.
        self._changed = threading.Condition()
        self._graph = DependencyGraph()
        self._sources: dict[ModelId, ModelSource] = {}
        #: The claimed models, each with all models of the operation that claims it.
        self._claimed: dict[ModelId, Collection[ModelId]] = {}
        #: For each call that waits: the model that calls in `initialize`, or an empty name, and the
        #: models whose loads the call waits for.
        self._waits: list[tuple[str, Collection[ModelId]]] = []
        self._errors: dict[ModelId, ServerError] = {}  # models that were read but failed to load
        self._unreadable: dict[ModelId, ServerError] = {}

    # ---------------------------------------------------------------------- loading, unloading

    def load_all(self) -> bool:
        """Load all new and changed models; unload models whose folder is gone or ambiguous.

        Failures are logged, and do not affect other models. Returns False if a model has failed.
        Raises ServerError only if a repository cannot be read.
        """
        names = self._poller.models()
        with self._changed:
            # This load may affect any model, so it waits for all other operations.
            self._changed.wait_for(lambda: not self._claimed)
            found = self._poller.poll(names, self._sources)
            # A model whose only folder cannot be read continues to serve.
            ambiguous = {name for name, paths in self._poller.directories().items() if paths[1:]}
            affected = self._unload_now(set(self._sources) - set(names) | ambiguous)
            plan = self._plan(found, affected)
        self._execute(plan)
        with self._changed:
            return not self._errors and not self._unreadable

    def load_named(self, names: Iterable[str]) -> bool:
        """Load these models and the models that they use. Return False if any failed or is missing.

        Raises ServerError if a repository cannot be read.
        """
        self._poller.directories()
        return not self._load({model for name in names for model in self._poller.ids(name)})

    def load(
        self,
        name: str,
        override: Override | None = None,
        *,
        joins: bool = True,
        initializing: str = "",
    ) -> None:
        """Load or reload a model and the models that it uses. Unchanged models are not reloaded.

        The old versions serve until the new versions are loaded, and continue if loading fails.

        Args:
            name: The model.
            override: The configuration and the files of the request, if any.
            joins: Whether to wait until removed instances are closed. A model's code must not wait,
                since a removed instance may wait for that code.
            initializing: The model whose `initialize` waits for the end of this call, if any.

        Raises:
            LoadDeadlock: The call would wait for the load of the model `initializing`.
            ServerError: The reason of a failure.
        """
        models = self._poller.ids(name)
        errors = self._load(set(models), override, joins=joins, initializing=initializing)
        for model in models:
            if model in errors:
                raise errors[model]

    def _load(
        self,
        names: set[ModelId],
        override: Override | None = None,
        *,
        joins: bool = True,
        initializing: str = "",
    ) -> dict[ModelId, ServerError]:
        """Load these models. Return the errors of failed models, with the texts for clients."""
        try:
            files = FileDirectory(override.files) if override and override.files else None
        except ServerError as error:
            log.error(
                "failed to load '%s': files of the load request: %s",
                ", ".join(sorted(names)),
                error,
            )
            return {model: not_polled(model.name) for model in names}
        try:
            with self._changed:
                found = self._poller.poll(names, self._sources, override, files)
                while blocking := self._needed(found, names).intersection(self._claimed):
                    self._wait(blocking, initializing)
                    # Another operation may have loaded the changed models by now.
                    found = self._poller.poll(names, self._sources, override, files)
                if files is not None and not names.isdisjoint(found.changed):
                    files.hold()
                refused = {
                    model: not_polled(model.name)
                    for model in names - set(found.changed)
                    if not self._graph.used({model}).isdisjoint(found.failed)
                }
                plan = self._plan(found)
                for name in names - set(refused) - set(plan.sources):
                    # Unchanged since an earlier load, which may have failed.
                    if not self._registry.ready(name):
                        refused[name] = internal(
                            f"failed to load '{name.name}', no version is available"
                        )
        finally:
            if files is not None:
                files.release()
        waits = (initializing, plan.sources)
        try:
            self._waits.append(waits)
            failed = self._execute(plan, joins=joins)
        finally:
            self._waits.remove(waits)
        return refused | {
            model: invalid_arg(f"load failed for model '{model}': {failed[model].message}\n")
            for model in names & set(failed)
        }

    def _needed(self, found: PollResult, names: set[ModelId]) -> set[ModelId]:
        """Return the affected models and the models that they use."""
        changed = names.union(found.changed)
        affected = changed | self._graph.users(changed)
        used = self._graph.used(affected)
        for model, source in found.changed.items():
            for step in source.steps:
                used.update(self._graph.named(step) or [ModelId(step, model.namespace)])
        return affected | used

    def _wait(self, blocking: Collection[ModelId], initializing: str) -> None:
        """Wait for a change of the claims on `blocking`. The caller holds the lock.

        Raises LoadDeadlock if the claiming operations wait for the load of the model
        `initializing`.
        """
        if not initializing:
            self._changed.wait()
            return
        waits = (initializing, blocking)
        if cycle := self._cycle(*waits):
            shown = ", ".join(f"'{one}' waits for '{next}'" for one, next in pairwise(cycle))
            raise LoadDeadlock(
                Code.INTERNAL,
                f"model '{initializing}': found a call in `initialize` that would never end, since "
                f"loads wait for each other: {shown}; expected a call after the load, such as in "
                "`execute`",
            )
        self._waits.append(waits)
        try:
            self._changed.wait()
        finally:
            self._waits.remove(waits)

    def _cycle(self, initializing: str, blocking: Collection[ModelId]) -> list[str]:
        """Return the models that wait for each other if `initializing` waits; empty: none do."""
        paths = [([initializing], blocking)]
        seen: set[ModelId] = set()
        for path, claimed in paths:  # grows during the loop
            # An operation ends when all of its models are loaded.
            for model in {each for name in claimed for each in self._claimed.get(name, ())} - seen:
                seen.add(model)
                if model.name == initializing:
                    return [*path, model.name]
                paths += [([*path, name], more) for name, more in self._waits if name == model.name]
        return []

    def _plan(self, found: PollResult, others: Collection[ModelId] = ()) -> LoadPlan:
        """Record the result of a poll, claim the affected models and plan to load them.

        `others` are reloaded as well. The caller holds the lock.
        """
        self._unreadable.update(found.failed)
        for name in found.read:
            self._unreadable.pop(name, None)
        for name, source in found.changed.items():
            self._set_source(name, source)
            self._graph.put(name, source.steps, explicit=source.explicit)
        affected = set(found.changed) | self._graph.users(found.changed) | set(others)
        self._claimed |= dict.fromkeys(affected, affected)
        return LoadPlan(
            list(self._graph.waves(affected)),
            {name: self._sources[name] for name in affected},
            {name: self._graph.present_steps(name) for name in affected},
            self._graph.errors(affected),
        )

    def _execute(self, plan: LoadPlan, *, joins: bool = True) -> dict[ModelId, ServerError]:
        """Load the models of the plan, then release the claims. Return the errors, by model.

        With `joins`, then wait until removed instances are closed, as Triton does. The code of
        these instances may load models of the plan, which would never end while the models are
        claimed.
        """
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
                    self._set_source(name, source.after(failed=failed))
                for name in plan.sources:
                    del self._claimed[name]
                self._changed.notify_all()
            self._draining.start(outcome.retired)
        if joins:
            for name in plan.sources:
                for served in self._registry.ready(name):
                    join_removed(served)
        return outcome.failed

    def unload(self, name: str, *, with_unused: bool = False, initializing: str = "") -> None:
        """Unload a model and the ensembles that use it.

        Waits for other operations on these models. Requests in flight are answered and the models
        are finalized in the background. With `with_unused`, also unload the models of an ensemble's
        steps that no other model uses and that were not loaded by name. `initializing` is as for
        `load`.
        """
        with self._changed:
            while blocking := self._affected(name).intersection(self._claimed):
                self._wait(blocking, initializing)
            self._unload_now(set(self._graph.named(name)), with_unused=with_unused)

    def _affected(self, name: str) -> set[ModelId]:
        """Return all models that unloading `name` may affect."""
        used = self._graph.used(self._graph.named(name) or [ModelId(name)])
        return used | self._graph.users(used)

    def _unload_now(self, names: set[ModelId], *, with_unused: bool = False) -> set[ModelId]:
        """Unload models, and the ensembles that cannot run without them.

        Returns the ensembles that can run with another model of the same name. The caller holds
        the lock.
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
        remaining = set()
        for name in (name for wave in self._graph.waves(users) for name in wave):
            try:
                if name in errors:
                    raise errors[name]
                step_ids = self._graph.present_steps(name)
                self._plans.check_steps(self._sources[name], step_ids, self._errors)
            except ServerError as error:
                log.error("%s", error.described())
                self._errors[name] = error
                retired.extend(self._rollout.withdraw(name))
            else:
                remaining.add(name)
        self._draining.start(retired)
        return remaining

    def _set_source(self, name: ModelId, source: ModelSource) -> None:
        """Set the source of a model, and release the previous source."""
        before = self._sources.get(name)
        self._sources[name] = source
        if before is not None and before.folder is not source.folder:
            self._release(before)

    @staticmethod
    def _release(source: ModelSource) -> None:
        if source.folder.temporary is not None:
            source.folder.temporary.release()

    def refuse(self) -> None:
        """Refuse new requests to all models; requests in flight continue."""
        for served in self.all():
            served.scheduler.refuse()

    def close(self) -> None:
        """Finish the requests in flight, then finalize all models, ensembles first."""
        names = self._registry.names()
        self._draining.start([served for name in names for served in self._rollout.withdraw(name)])
        self._draining.join()
        with self._changed:
            for source in self._sources.values():
                self._release(source)
            self._sources.clear()

    # --------------------------------------------------------------------------------- queries

    def versions(self, name: str) -> list[ServedModel]:
        """Return the loaded versions of a model, ascending; empty if it is unknown or failed."""
        try:
            return self._registry.ready(self._registry.named(name))
        except ServerError:
            return []

    def all(self) -> list[ServedModel]:
        """Return all loaded versions of all models, sorted by name, then version."""
        return [served for name in self._registry.names() for served in self._registry.ready(name)]

    def in_flight(self) -> list[tuple[str, int, int]]:
        """Return (model, version, requests in flight) for each version with requests in flight."""
        return [
            (served.config.name, served.version, count)
            for served in self.all()
            if (count := served.scheduler.in_flight)
        ]

    @property
    def live(self) -> int:
        """The number of versions that are not finalized yet, including versions out of service."""
        return len(self._draining.leaving.union(self.all()))

    def index(self, *, ready_only: bool = False, with_failures: bool = False) -> list[IndexEntry]:
        """Return the repository index, sorted by name, then version.

        With `with_failures`, the reason of a ready version reports that a newer load of the model
        has failed. Raises ServerError if a repository cannot be read.
        """
        folders = self._poller.directories()
        errors = self._failures() if with_failures else {}
        return index_entries(folders, self._registry, errors, ready_only=ready_only)

    def statuses(self) -> list[VersionStatus]:
        """Return the status of each requested model version, sorted by name, then version."""
        return version_statuses(self._registry, self._failures())

    def _failures(self) -> dict[ModelId, ServerError]:
        """Return the errors of models whose newest load failed."""
        with self._changed:
            return {**self._errors, **self._unreadable}

    @property
    def is_complete(self) -> bool:
        """True if every requested version is ready, or was unloaded on request."""
        return self._registry.is_complete
