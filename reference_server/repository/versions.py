"""The registry of model versions: their states with reasons, and the versions that serve."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from reference_server.config.scheduler_settings import InstanceConfig
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import (
    BackendError,
    ServerError,
    invalid_arg,
    not_found,
    unavailable,
)
from reference_server.core.health import Health
from reference_server.core.portability import ignore
from reference_server.core.ports import Scheduler
from reference_server.core.request import LATEST, InferRequest, InferResponse, answer
from reference_server.core.rules import RequestRules
from reference_server.core.telemetry import FailureReason
from reference_server.observability.latency_summaries import FirstResponses
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.repository.model_folders import DUPLICATE, FileDirectory, ModelId, ModelIds
from reference_server.scheduling.deadlocks import InstanceGroup

log = logging.getLogger(__name__)

_UNLOADED = "unloaded"


class State(enum.Enum):
    """The state of a model version, with the names of the repository index."""

    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One loaded version: everything that a request needs to run. Thread-safe.

    Attributes:
        config: The completed configuration.
        version: The version.
        rules: The checks of requests.
        scheduler: Runs the requests.
        statistics: Counts the requests.
        labels: The lines of the label files, by output.
        order: A number that grows with each load; an ensemble's number is greater than its models'
            numbers.
        files: The temporary folder, if the files come from a load request.
        health: The health of the instances.
        group: The instances, if the model has any.
        running: The settings of the instances, by their numbers in the scheduler.
        load_ns: The duration of loading.
        first_responses: The histogram of first response times, if enabled.
        namespace: The namespace of the model's id.
        report: Receives the keys of portability rows that apply to the model.
    """

    config: ModelConfig
    version: int
    rules: RequestRules
    scheduler: Scheduler
    statistics: ModelStatistics
    labels: Mapping[str, tuple[str, ...]]
    order: int = 0
    files: FileDirectory | None = None
    health: Health = field(default_factory=Health)
    group: InstanceGroup | None = None
    running: Mapping[int, InstanceConfig] = field(default_factory=dict)
    load_ns: int = 0
    first_responses: FirstResponses | None = None
    namespace: str = ""
    report: Callable[[str], None] = ignore

    @property
    def id(self) -> ModelId:
        """The id of the model."""
        return ModelId(self.config.name, self.namespace)

    def infer(self, request: InferRequest) -> None:
        """Check and schedule a request; its sink receives the responses.

        Raises ServerError if the request is refused; then the sink receives nothing.
        """
        try:
            self.rules.admit(request)
        except BackendError as error:
            # In Triton, the server accepts this request and the backend fails. The failure is
            # therefore counted, and the error is sent as a response.
            ensemble = self.config.is_ensemble
            reason = FailureReason.OTHER if ensemble else FailureReason.BACKEND
            self.statistics.refused(request, reason)
            name = self.config.name
            answer(request, InferResponse(name, self.version, request.id, error=error))
            return
        if self.first_responses is not None:
            self.first_responses.await_first(request)
        if request.trace is not None:
            request.trace.accepted(self.config.name, self.version, request)
        if log.isEnabledFor(logging.DEBUG):
            self._log_request(request)
        self.scheduler.submit(request)

    def _log_request(self, request: InferRequest) -> None:
        label = request.label
        log.debug("%s Setting state from INITIALIZED to INITIALIZED", label)
        log.debug(
            "%s prepared: request id: %s, model: %s, actual version: %d, flags: 0x%x, "
            "correlation id: %s, batch size: %d, priority: %d, timeout (us): %d, inputs: %s, "
            "requested outputs: %s",
            label,
            request.id,
            self.config.name,
            self.version,
            request.flags,
            request.correlation_id,
            request.batch_size if self.config.signature.batches else 0,
            request.priority,
            request.timeout_us,
            ", ".join(
                f"{tensor.name} {tensor.datatype.value if tensor.datatype else '<invalid>'} "
                f"[{','.join(map(str, tensor.shape))}]"
                for tensor in request.inputs.values()
            ),
            ", ".join(
                request.requested_outputs
                or (tensor.name for tensor in self.config.signature.outputs)
            ),
        )
        log.debug("%s Setting state from INITIALIZED to PENDING", label)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A row of the table printed at start-up; `reason` is empty if the version is ready."""

    model: str
    version: int | None
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """The registry's entry of one version; `served` is set if the state is ready or unloading."""

    version: int
    state: State
    reason: str = ""
    served: ServedModel | None = None

    @property
    def reported(self) -> tuple[State, str]:
        """The state and reason for clients: an unhealthy version is not ready."""
        if self.state is State.READY and self.served is not None and self.served.health.reason:
            return State.UNAVAILABLE, self.served.health.reason
        return self.state, self.reason or self.mark

    @property
    def mark(self) -> str:
        """The mark of a ready version whose answers are made up."""
        reason = self.served.config.stand_in if self.served is not None else ""
        return f"STAND-IN: {reason}" if reason and self.state is State.READY else ""

    @property
    def is_complete(self) -> bool:
        """True if the version is ready, or was unloaded on request."""
        state, reason = self.reported
        return state is State.READY or reason == _UNLOADED


class VersionRegistry:
    """The records of all versions of all models. Thread-safe; `find` takes no lock.

    A model may have an entry without versions, if its version policy selects none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By ModelId; `find` may use a plain name, which equals an id without a namespace. Inner
        # dicts are replaced, never modified, so that readers need no lock.
        self._records: dict[str, dict[int, VersionRecord]] = {}
        self._latest: dict[str, ServedModel] = {}
        self._ids = ModelIds()

    def enter(self, name: ModelId, records: Iterable[VersionRecord] = ()) -> None:
        """Add or replace records of a model's versions."""
        with self._lock:
            self._ids.add(name)
            known = self._records.get(name, {})
            self._replace(name, {**known, **{record.version: record for record in records}})

    def forget(self, name: ModelId) -> None:
        """Remove the model from the look-up by name. Its records stay."""
        with self._lock:
            self._ids.discard(name)

    def unloaded(self, served: ServedModel) -> None:
        """Record that `served` is finalized, unless another load has replaced it."""
        name, version = served.id, served.version
        with self._lock:
            known = self._records.get(name, {})
            record = known.get(version)
            if record is not None and record.served is served:
                gone = VersionRecord(version, State.UNAVAILABLE, _UNLOADED)
                self._replace(name, {**known, version: gone})

    def _replace(self, name: ModelId, records: dict[int, VersionRecord]) -> None:
        self._records[name] = dict(sorted(records.items()))
        ready = _ready(self._records[name])
        if ready:
            self._latest[name] = ready[-1]
        else:
            self._latest.pop(name, None)

    def find_named(self, name: str, version: int = LATEST) -> ServedModel:
        """Return the served model of this name, like `find`; the name must be unambiguous."""
        return self.find(self.named(name), version)

    def named(self, name: str) -> ModelId:
        """Return the model of this name. Raises ServerError unless there is exactly one."""
        with self._lock:
            found = self._ids.named(name)
        if found is None:
            raise invalid_arg(f"Request for unknown model: '{name}' is not found")
        if not found:
            raise not_found(f"Identifier of model '{name}' is not found in global map")
        if len(found) > 1:
            raise invalid_arg(
                f"There are {len(found)} identifiers of model '{name}' in global map, model "
                "namespace must be provided to resolve ambiguity."
            )
        return found[0]

    def find(self, name: str, version: int = LATEST) -> ServedModel:
        """Return the served model; LATEST is its greatest version.

        `name` is a ModelId or a plain name. Raises ServerError NOT_FOUND, or UNAVAILABLE for a
        version that is known but not ready.
        """
        if version == LATEST:  # the fast path of nearly all requests: one look-up
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

    def names(self) -> list[ModelId]:
        """Return the models that have an entry, sorted."""
        return cast("list[ModelId]", sorted(self._records))

    def records(self, name: ModelId) -> list[VersionRecord] | None:
        """Return the records of a model's versions, ascending; None if it has no entry."""
        records = self._records.get(name)
        return None if records is None else list(records.values())

    def ready(self, name: ModelId) -> list[ServedModel]:
        """Return the ready versions of a model, ascending."""
        return _ready(self._records.get(name, {}))

    @property
    def is_complete(self) -> bool:
        """True if each model has a version, and each version is ready or unloaded on request."""
        with self._lock:
            entries = list(self._records.values())
        return all(
            records and all(record.is_complete for record in records.values())
            for records in entries
        )


def _ready(records: dict[int, VersionRecord]) -> list[ServedModel]:
    return [
        record.served
        for record in records.values()
        if record.state is State.READY and record.served is not None
    ]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One row of the repository index; unknown fields are None."""

    name: str
    version: int | None = None
    state: State | None = None
    reason: str = ""

    @property
    def fields(self) -> tuple[str, int | None, str | None, str]:
        """Name, version, state and reason, for the codecs."""
        return self.name, self.version, self.state.value if self.state else None, self.reason


def index_entries(
    folders: Mapping[ModelId, Sequence[Path]],
    registry: VersionRegistry,
    errors: Mapping[ModelId, ServerError],
    *,
    ready_only: bool,
) -> list[IndexEntry]:
    """Return the rows of all `folders`, sorted by name, then version.

    `errors` has the errors of models whose newest load failed. If older versions still serve, they
    are ready, and their reason contains the error.
    """
    entries: list[IndexEntry] = []
    for model, paths in folders.items():
        name = model.name
        records = registry.records(model)
        if len(paths) > 1:
            entries.append(IndexEntry(name, state=State.UNAVAILABLE, reason=DUPLICATE))
        elif records is None:
            if not ready_only:
                entries.append(IndexEntry(name))
        else:
            for record in records:
                state, reason = record.reported
                if state is State.READY and not reason and model in errors:
                    error = errors[model].described()
                    reason = f"the previous load still serves; the newest load failed: {error}"
                if state is State.READY or not ready_only:
                    entries.append(IndexEntry(name, record.version, state, reason))
    return entries


def version_statuses(
    registry: VersionRegistry, errors: Mapping[ModelId, ServerError]
) -> list[VersionStatus]:
    """Return the status of each model version, sorted by name, then version.

    `errors` has the errors of models whose newest load failed.
    """
    found: list[VersionStatus] = []
    for name in sorted({*registry.names(), *errors}):
        records = registry.records(name)
        if records:
            found += [
                VersionStatus(name, record.version, record.state, record.reason or record.mark)
                for record in records
            ]
        elif name in errors:
            reason = errors[name].described()
            found.append(VersionStatus(name, None, State.UNAVAILABLE, reason))
    return found
