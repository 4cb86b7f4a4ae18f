"""What instances of Python models have in common, wherever they run: spec, readiness, reshape."""

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

#: How long a model may take to say whether it is ready; as in Triton 26.03 and later.
READINESS_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What tells one instance of a Python model from all others.

    `config_json` is the completed configuration as the model reads it, `output_names` the outputs
    that it declares. `kind` is `CPU`, `GPU` or `MODEL`. A request to a decoupled model has any
    number of responses; an iterative one may ask to be given a request again. `state_names` are
    outputs that the server keeps for the next request of a sequence. `has_newer_api` as in
    TritonProfile.
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

    @property
    def model_file(self) -> Path:
        """The file that defines `TritonPythonModel`."""
        return self.version_directory / self.model_filename

    def arguments(self) -> dict[str, str]:
        """What `initialize` is given."""
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
    """What one instance says of itself. Any thread.

    `ask` asks the model; it may block, and has a thread of its own while it does. Whoever comes
    meanwhile waits for the same answer, so one that never comes costs one thread.
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
        """Whether it says so; False if it has not said so in time. Blocks until then."""
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
            log.error("'%s' did not say within %g s whether it is ready", self._name, self._limit_s)
            return False

    def _run(self, answer: futures.Future[bool]) -> None:
        ready = False
        try:
            ready = self._ask()
        except Exception:  # a defect must not leave those waiting who come later
            log.exception("'%s' cannot be asked whether it is ready", self._name)
        finally:
            with self._lock:  # first: whoever asks once this is answered gets a newer answer
                self._answer = None
            answer.set_result(ready)


def with_reshaped_outputs(instance: ModelInstance, signature: Signature) -> ModelInstance:
    """`instance`, giving every output in its `dims`; the same object if there is nothing to do."""
    layouts = OutputLayouts(signature)
    return _Reshaping(instance, layouts) if layouts else instance


class _Reshaping:
    """An instance that gives the outputs of another their `reshape`d shapes."""

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
            request.sink = sink  # those that are given again get another
        for response in execution.responses:
            if response is not None:
                self._layouts.show(response)
        return execution
