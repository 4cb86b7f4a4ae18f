"""Carrying out what an operation is to load: wave by wave, what is used before its users."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from reference_server.core.errors import ServerError, invalid_arg
from reference_server.repository.book import Book
from reference_server.repository.loading import Loading
from reference_server.repository.polling import Polled
from reference_server.repository.served import ServedModel

log = logging.getLogger(__name__)


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
