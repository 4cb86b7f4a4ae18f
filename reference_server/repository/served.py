"""A model version that is loaded, and the book of all of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from reference_server.config.schema import ModelConfig
from reference_server.core.errors import BackendError
from reference_server.core.ports import Scheduler
from reference_server.core.request import InferRequest
from reference_server.core.response import InferResponse
from reference_server.core.rules import RequestRules
from reference_server.observability.statistics import ModelStatistics


class State(enum.Enum):
    """The life of a model version, in the words of the repository index."""

    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One loaded version: everything that a request needs to run. Any thread.

    `labels` are the lines of the label files, by output.
    """

    config: ModelConfig
    version: int
    rules: RequestRules
    scheduler: Scheduler
    statistics: ModelStatistics
    labels: Mapping[str, tuple[str, ...]]

    def infer(self, request: InferRequest) -> None:
        """Check `request` and schedule it; its sink will be answered.

        Raises ServerError if it is refused, and then its sink hears nothing.
        """
        try:
            self.rules.admit(request)
        except BackendError as error:
            self.statistics.refused(request)
            name = self.config.name
            request.sink.send(InferResponse(name, self.version, request.id, error=error))
            return
        self.scheduler.submit(request)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What the start-up table says of one version; `reason` is empty when it is ready."""

    model: str
    version: int | None
    state: State
    reason: str = ""
