"""The parts that all instances of Python models share: specification, readiness, reshape."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

from reference_server.core.metadata import Signature
from reference_server.core.ports import ModelInstance
from reference_server.core.request import Execution, InferRequest
from reference_server.core.rules import OutputLayouts, ShowingSink

log = logging.getLogger(__name__)

#: The time limit for a model's `is_ready`, as in Triton 26.03 and later.
READINESS_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """The specification of one instance of a Python model.

    Attributes:
        name: The instance's name.
        model_name: The model's name.
        model_version: The model's version.
        model_directory: The model's folder.
        version_directory: The version's folder.
        model_filename: The file in the version's folder that defines `TritonPythonModel`.
        config_json: The completed configuration that the model receives.
        output_names: The outputs that the model declares.
        kind: `CPU`, `GPU` or `MODEL`.
        device_id: The number of the device.
        is_decoupled: Whether a request may have any number of responses.
        is_iterative: Whether the model may reschedule requests.
        state_names: The outputs that the server keeps for the next request of a sequence.
        has_newer_api: As in TritonProfile.
        strict_portable: As in ServerOptions.
        environment: The path in EXECUTION_ENV_PATH; empty for the server's own environment.
    """

    name: str
    model_name: str
    model_version: int
    model_directory: Path
    version_directory: Path
    model_filename: str
    config_json: str
    output_names: frozenset[str]
    kind: str = "CPU"
    device_id: int = 0
    is_decoupled: bool = False
    is_iterative: bool = False
    state_names: frozenset[str] = frozenset()
    has_newer_api: bool = True
    strict_portable: bool = False
    environment: str = ""

    @property
    def model_file(self) -> Path:
        """The file that defines `TritonPythonModel`."""
        return self.version_directory / self.model_filename

    def arguments(self) -> dict[str, str]:
        """Return the argument of `initialize`."""
        return {
            "model_config": self.config_json,
            "model_instance_kind": self.kind,
            "model_instance_name": self.name,
            "model_instance_device_id": str(self.device_id),
            "model_repository": str(self.model_directory),
            "model_version": str(self.model_version),
            "model_name": self.model_name,
        }


class Readiness:
    """The readiness of one instance. Thread-safe.

    `ask` calls the model and may block; it runs on a separate thread. Concurrent calls wait for the
    same result, so a model that never returns costs one thread.
    """

    def __init__(
        self, name: str, ask: Callable[[], bool], limit_s: float = READINESS_LIMIT_S
    ) -> None:
        self._name = name
        self._ask = ask
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._answer: futures.Future[bool] | None = None

    def __call__(self) -> bool:
        """Wait for the model's readiness; return False after the time limit."""
        with self._lock:
            answer = self._answer
            if answer is None:
                answer = self._answer = futures.Future()
                threading.Thread(
                    target=self._run, args=(answer,), name=f"{self._name} ready", daemon=True
                ).start()
        try:
            return answer.result(self._limit_s)
        except futures.TimeoutError:
            log.error("'%s': is_ready did not return within %g s", self._name, self._limit_s)
            return False

    def _run(self, answer: futures.Future[bool]) -> None:
        ready = False
        try:
            ready = self._ask()
        except Exception:  # a defect must not block the waiting callers
            log.exception("'%s': is_ready could not be called", self._name)
        finally:
            with self._lock:  # before the result, so that a later call starts a new check
                self._answer = None
            answer.set_result(ready)


def with_reshaped_outputs(instance: ModelInstance, signature: Signature) -> ModelInstance:
    """Return an instance with reshaped outputs, or `instance` if no output has a reshape."""
    layouts = OutputLayouts(signature)
    return _Reshaping(instance, layouts) if layouts else instance


class _Reshaping:
    """An instance that applies the configured `reshape` to the outputs of another instance."""

    def __init__(self, instance: ModelInstance, layouts: OutputLayouts) -> None:
        self._instance = instance
        self._layouts = layouts

    @property
    def name(self) -> str:
        return self._instance.name

    def open(self) -> None:
        self._instance.open()

    def close(self) -> None:
        self._instance.close()

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        sinks = [request.sink for request in requests]
        for request in requests:
            request.sink = ShowingSink(self._layouts, request.sink)
        execution = self._instance.execute(requests)
        for request, sink in zip(requests, sinks, strict=True):
            request.sink = sink  # rescheduled requests are wrapped again
        for response in execution.responses:
            if response is not None:
                self._layouts.show(response)
        return execution
