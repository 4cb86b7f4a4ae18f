"""The inline host: an instance of a Python model lives on a thread of the server's own process.

A breakpoint, a stack trace or a profiler sees the model as it sees any other code, and tensors
are handed over by reference. What the process shares, such as the environment or the GIL, its
models share too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from reference_server.backends.python_host.api.metrics import InstanceMetrics, bound_family
from reference_server.backends.python_host.api.model_config import ModelConfig
from reference_server.backends.python_host.api.request import InferenceRequest
from reference_server.backends.python_host.api.response import InferenceResponse
from reference_server.backends.python_host.coroutines import CoroutineRunner
from reference_server.backends.python_host.exceptions import describe
from reference_server.backends.python_host.loading import load
from reference_server.backends.python_host.modules import ModelModules
from reference_server.core.clock import Clock
from reference_server.core.errors import ServerError, internal
from reference_server.core.ports import Metrics
from reference_server.core.request import InferRequest
from reference_server.core.response import Execution, InferResponse

log = logging.getLogger(__name__)

_NOTHING_SENT = "The model returned None instead of a response, and has not sent one."


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What tells one instance of a Python model from all others.

    `config_json` is the completed configuration as the model reads it, `output_names` the outputs
    that it declares. `kind` is `CPU`, `GPU` or `MODEL`.
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


class InlineInstance:
    """A ModelInstance that runs `model.py` in this process, on the thread that calls it.

    Output arrays reach the client by reference: a model that goes on writing to an array it
    answered with changes that answer.
    """

    def __init__(self, spec: InstanceSpec, clock: Clock, metrics: Metrics) -> None:
        self._spec = spec
        self._clock = clock
        self._registry = metrics
        self._metrics: InstanceMetrics  # one for each time that the instance is open
        self._modules: ModelModules | None = None
        self._model: Any = None
        self._coroutines = CoroutineRunner()

    def __repr__(self) -> str:
        state = "closed" if self._modules is None else "open"
        return f"InlineInstance({self.name} of {self._spec.model_file}, {state})"

    @property
    def name(self) -> str:
        """The instance's name, as it stands in error texts."""
        return self._spec.name

    def open(self) -> None:
        """Import the model's file, construct `TritonPythonModel` and initialize it.

        Blocks for as long as the model does. Raises ServerError with the model's exception.
        """
        spec = self._spec
        log.info(
            "TRITONBACKEND_ModelInstanceInitialize: %s (%s device %d)",
            spec.name,
            spec.kind,
            spec.device_id,
        )
        self._metrics = InstanceMetrics(self._registry, spec.name)
        modules, module = load(spec.model_file, bound_family(self._metrics))
        try:
            model = module.TritonPythonModel()
            if hasattr(model, "initialize"):
                model.initialize(spec.arguments())
        except BaseException as error:
            self._metrics.keeps = True
            modules.close()
            raise internal(describe(error)) from error
        self._modules, self._model = modules, model

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run one batch. Blocks; raises ServerError if the batch as a whole failed."""
        output_names = self._spec.output_names
        received = [InferenceRequest._received(request, output_names) for request in requests]
        input_end_ns = self._clock.monotonic_ns()
        returned = self._run(received)
        output_start_ns = self._clock.monotonic_ns()
        answers = self._checked(returned, len(requests))
        responses = list(map(self._response, requests, answers))
        return Execution(responses, input_end_ns, output_start_ns)

    def close(self) -> None:
        """Finalize the model and forget its modules; an exception of it is only logged."""
        if self._modules is None:
            return
        self._coroutines.stop()
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException as error:
            log.info("%s", describe(error))
        self._metrics.keeps = True
        self._modules.close()
        self._modules = self._model = None

    def _run(self, received: list[InferenceRequest]) -> object:
        try:
            if hasattr(self._model, "execute"):
                returned: object = self._model.execute(received)
                if isinstance(returned, Coroutine):
                    returned = self._coroutines.run(returned)
                return returned
        except BaseException as error:
            raise self._failure(describe(error)) from error
        raise self._failure(
            f"Python model {self._spec.model_file} does not implement `execute` method."
        )

    def _checked(self, returned: object, count: int) -> list[InferenceResponse | None]:
        if returned is None:
            raise self._failure(_NOTHING_SENT)
        if not isinstance(returned, list):
            raise self._failure(
                f"Expected a list in the execute return, found type '{type(returned)}'."
            )
        if len(returned) != count:
            raise self._failure(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{count}, and InferenceResponse(s) size is:"
                f"{len(returned)}\n"
            )
        for answer in returned:
            if not _is_answer(answer):
                raise self._failure(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(answer)}'."
                )
        return returned

    def _response(self, request: InferRequest, answer: InferenceResponse | None) -> InferResponse:
        spec = self._spec
        response = InferResponse(spec.model_name, spec.model_version, request.id)
        if answer is None:
            response.error = self._failure(_NOTHING_SENT)
        elif answer._error is not None:
            response.error = answer._error._as_server_error()
        else:
            wanted = request.requested_outputs or spec.output_names
            response.outputs = [
                tensor._core for tensor in answer._output_tensors if tensor._core.name in wanted
            ]
        return response

    def _failure(self, message: str) -> ServerError:
        """The error that the clients are told, written to the log once for the batch."""
        error = internal(
            f"Failed to process the request(s) for model '{self.name}', message: {message}"
        )
        log.error("%s", error)
        return error


def _is_answer(value: object) -> TypeGuard[InferenceResponse | None]:
    return value is None or isinstance(value, InferenceResponse)


def auto_complete(model_file: Path, model_name: str, config: dict[str, Any]) -> dict[str, Any]:
    """`config` as the model's `auto_complete_config` completes it; as it is if it has none.

    The file is imported for this alone, so nothing that it sets is there when an instance opens.
    Blocks for as long as the model does. Raises ServerError with the model's exception, or if the
    function returns something else than a ModelConfig.
    """
    modules, module = load(model_file)
    try:
        model = module.TritonPythonModel
        if not hasattr(model, "auto_complete_config"):
            return config
        completed = model.auto_complete_config(ModelConfig(json.dumps(config)))
    except BaseException as error:
        raise internal(describe(error)) from error
    finally:
        modules.close()
    if not isinstance(completed, ModelConfig):
        raise internal(
            f"auto_complete_config function in model '{model_name}' must return a valid "
            "pb.ModelConfig object."
        )
    return completed.as_dict()
