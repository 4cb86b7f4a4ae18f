"""The operations of the protocol, over the loaded models. Every method may be called by any thread.

Fronts translate bytes to calls of these and results to bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import reference_server
from reference_server.core.errors import invalid_arg
from reference_server.core.health import Question
from reference_server.core.metadata import ModelMetadata, ServerMetadata
from reference_server.core.ports import Clock
from reference_server.core.request import LATEST
from reference_server.core.telemetry import Snapshot
from reference_server.gateway.logging import LogSettings
from reference_server.gateway.tracing import TraceSettings
from reference_server.observability import logs
from reference_server.options import ServerOptions
from reference_server.repository.manager import Repository
from reference_server.repository.versions import ServedModel

#: The protocol extensions that this server speaks, as its metadata reports them.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class Gateway:
    """What a client can ask of the server.

    `logging` and `tracing` are the settings that it can change.
    """

    def __init__(self, repository: Repository, options: ServerOptions, clock: Clock) -> None:
        self._repository = repository
        self._options = options
        self._metadata = ServerMetadata(
            options.server_id, reference_server.TRITON_VERSION, EXTENSIONS
        )
        self.logging = LogSettings(options.log, logs.apply)
        self.tracing = TraceSettings(options.trace, clock, self._is_loaded)

    def live(self) -> bool:
        """The server answers, so it lives."""
        return True

    def ready(self) -> bool:
        """True if models can be asked; with strict readiness, if all of them loaded."""
        return self._repository.is_complete or not self._options.strict_readiness

    def server_metadata(self) -> ServerMetadata:
        """Name, version and extensions."""
        return self._metadata

    def model_ready(self, name: str, version: int = LATEST) -> Sequence[Question] | None:
        """None if that version, or the latest, is not loaded and well.

        If it is, the questions that the model itself has to say yes to; mostly there are none.
        """
        versions = self._repository.versions(name)
        if version != LATEST:
            versions = [served for served in versions if served.version == version]
        if not versions or versions[-1].health.reason:
            return None
        return versions[-1].health.questions

    def _is_loaded(self, name: str) -> bool:
        return bool(self._repository.versions(name))

    def find(self, name: str, version: int = LATEST) -> ServedModel:
        """The loaded model. Raises ServerError NOT_FOUND."""
        return self._repository.find(name, version)

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        """Versions, platform and tensors. Raises ServerError NOT_FOUND."""
        served = self.find(name, version)
        versions = (
            [loaded.version for loaded in self._repository.versions(name)]
            if version == LATEST
            else [version]
        )
        return ModelMetadata(served.config.signature, tuple(versions), served.config.shown_platform)

    def model_config(self, name: str, version: int = LATEST) -> str:
        """The completed configuration as JSON. Raises ServerError NOT_FOUND."""
        return self.find(name, version).config.json

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[Snapshot]:
        """The counters of a version, of all versions of a model, or of all models.

        Raises ServerError INVALID_ARG if what is named is not loaded.
        """
        if not name:
            return [served.statistics.snapshot() for served in self._repository.all()]
        loaded = self._repository.versions(name)
        if not loaded:
            raise invalid_arg(f"requested model '{name}' is not available")
        if version != LATEST:
            loaded = [served for served in loaded if served.version == version]
            if not loaded:
                raise invalid_arg(f"requested model version is not available for model '{name}'")
        return [served.statistics.snapshot() for served in loaded]
