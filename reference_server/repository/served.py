"""A model version that is loaded, and the words for what became of one."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from reference_server.config.schema import ModelConfig
from reference_server.core.errors import BackendError
from reference_server.core.health import Health
from reference_server.core.ports import Scheduler
from reference_server.core.request import InferRequest, answer
from reference_server.core.response import InferResponse
from reference_server.core.rules import RequestRules
from reference_server.core.telemetry import FailureReason
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.repository.overrides import FileDirectory
from reference_server.scheduling.deadlocks import Crew


class State(enum.Enum):
    """The life of a model version, in the words of the repository index."""

    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One loaded version: everything that a request needs to run. Any thread.

    `labels` are the lines of the label files, by output. `order` grows with each model that is
    loaded: an ensemble's is greater than those of its steps. `files` is the directory that is kept
    for the model, if a load request brought its files. `crew` are its instances, if it has any.
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
    crew: Crew | None = None

    def infer(self, request: InferRequest) -> None:
        """Check `request` and schedule it; its sink will be answered.

        Raises ServerError if it is refused, and then its sink hears nothing.
        """
        try:
            self.rules.admit(request)
        except BackendError as error:
            ensemble = self.config.is_ensemble
            reason = FailureReason.OTHER if ensemble else FailureReason.BACKEND
            self.statistics.refused(request, reason)
            name = self.config.name
            answer(request, InferResponse(name, self.version, request.id, error=error))
            return
        if request.trace is not None:
            request.trace.accepted(self.config.name, self.version, request)
        self.scheduler.submit(request)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What the start-up table says of one version; `reason` is empty when it is ready."""

    model: str
    version: int | None
    state: State
    reason: str = ""
