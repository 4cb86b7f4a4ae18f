"""The book of model versions: which are served, which were, and why others are not."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from reference_server.core.errors import not_found, unavailable
from reference_server.core.request import LATEST
from reference_server.repository.served import ServedModel, State

UNLOADED = "unloaded"


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """What is known of one version. `served` is there while it is ready or unloading."""

    version: int
    state: State
    reason: str = ""
    served: ServedModel | None = None

    @property
    def shown(self) -> tuple[State, str]:
        """The state and the reason that are told: one that is ailing is not ready."""
        if self.state is State.READY and self.served is not None and self.served.health.reason:
            return State.UNAVAILABLE, self.served.health.reason
        return self.state, self.reason

    @property
    def is_settled(self) -> bool:
        """True if the version is as it was asked to be: ready, or unloaded on request."""
        state, reason = self.shown
        return state is State.READY or reason == UNLOADED


class Book:
    """The records of all versions of all models. Any thread; finding takes no lock.

    A model may be entered without a version: one for which none could be chosen.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Inner dicts are replaced, never changed, so that readers see one or the other.
        self._records: dict[str, dict[int, VersionRecord]] = {}
        self._latest: dict[str, ServedModel] = {}

    def enter(self, name: str, records: Iterable[VersionRecord] = ()) -> None:
        """Note `records` of the model in place of what was known of these versions."""
        with self._lock:
            known = self._records.get(name, {})
            self._replace(name, {**known, **{record.version: record for record in records}})

    def unloaded(self, served: ServedModel) -> None:
        """Note that `served` is finalized, unless another model has taken its place."""
        name, version = served.config.name, served.version
        with self._lock:
            known = self._records.get(name, {})
            record = known.get(version)
            if record is not None and record.served is served:
                gone = VersionRecord(version, State.UNAVAILABLE, UNLOADED)
                self._replace(name, {**known, version: gone})

    def _replace(self, name: str, records: dict[int, VersionRecord]) -> None:
        self._records[name] = dict(sorted(records.items()))
        ready = _ready(self._records[name])
        if ready:
            self._latest[name] = ready[-1]
        else:
            self._latest.pop(name, None)

    def find(self, name: str, version: int = LATEST) -> ServedModel:
        """The served model; LATEST is its greatest version.

        Raises ServerError: NOT_FOUND, or UNAVAILABLE for a version that is known and not ready.
        """
        if version == LATEST:
            served = self._latest.get(name)
            if served is not None:
                return served
        records = self._records.get(name)
        if records is None:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        if version == LATEST:
            raise not_found(f"Request for unknown model: '{name}' has no available versions")
        record = records.get(version)
        if record is None:
            raise not_found(f"Request for unknown model: '{name}' version {version} is not found")
        if record.state is not State.READY or record.served is None:
            raise unavailable(
                f"Request for unknown model: '{name}' version {version} is not at ready state"
            )
        return record.served

    def names(self) -> list[str]:
        """The models that have an entry."""
        return sorted(self._records)

    def records(self, name: str) -> list[VersionRecord] | None:
        """The records of a model's versions, ascending; None if it has no entry."""
        records = self._records.get(name)
        return None if records is None else list(records.values())

    def ready(self, name: str) -> list[ServedModel]:
        """The versions of a model that are served, ascending."""
        return _ready(self._records.get(name, {}))

    @property
    def is_settled(self) -> bool:
        """True if each model has a version, and each version is ready or unloaded on request."""
        with self._lock:
            entries = list(self._records.values())
        return all(
            records and all(record.is_settled for record in records.values()) for records in entries
        )


def _ready(records: dict[int, VersionRecord]) -> list[ServedModel]:
    return [
        record.served
        for record in records.values()
        if record.state is State.READY and record.served is not None
    ]
