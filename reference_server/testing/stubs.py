"""Stubs of models that the model under test calls by BLS."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy.typing as npt
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.backends.python_host.model_code import describe
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.health import Health
from reference_server.core.request import LATEST, InferRequest, InferResponse
from reference_server.core.tensor import Tensor
from reference_server.repository.bls import CalledModel, Models
from reference_server.repository.model_folders import Override
from reference_server.testing.model import tensor_of

#: Outputs by name.
Outputs = Mapping[str, npt.ArrayLike]
#: Returns outputs for input arrays by name; it may change the arrays. A generator function yields
#: any number of responses, like a decoupled model. An exception becomes the error of the response.
Stub = Callable[[Mapping[str, npt.NDArray[Any]]], Outputs | Iterator[Outputs]]


class StubbedModels:
    """The models that can be called by BLS: stubs, then loaded models. Thread-safe."""

    def __init__(self, loaded: Models) -> None:
        self._loaded = loaded
        self._stubs: dict[str, StubModel] = {}

    def add(self, name: str, stub: Stub) -> None:
        """Let `stub` answer calls to the model `name` from now on."""
        self._stubs[name] = StubModel(name, stub)

    def find(self, name: str, version: int = LATEST) -> CalledModel:
        """Return the stub, which replaces all versions, or the loaded model. Raises ServerError."""
        return self._stubs.get(name) or self._loaded.find(name, version)

    def load(self, name: str, override: Override | None = None) -> None:
        """Load a model. Raises ServerError."""
        self._loaded.load(name, override)

    def unload(self, name: str, *, with_unused: bool = False) -> None:
        """Start to unload a model."""
        self._loaded.unload(name, with_unused=with_unused)


class StubModel:
    """One stub: a CalledModel that answers at once, on the calling thread."""

    group = None

    def __init__(self, name: str, stub: Stub) -> None:
        self.health = Health()
        self._stub = stub
        message = ConfigProto(name=name, backend="python")
        message.model_transaction_policy.decoupled = inspect.isgeneratorfunction(stub)
        self.config = ModelConfig.from_proto(message)

    def infer(self, request: InferRequest) -> None:
        """Answer `request`; errors are sent as responses."""
        given = {name: tensor.array().copy() for name, tensor in request.inputs.items()}
        try:
            answer = self._stub(given)
            if isinstance(answer, Mapping):
                _send(request, outputs=self._outputs(request, answer))
                return
            for outputs in answer:
                _send(request, outputs=self._outputs(request, outputs), final=False)
        except ServerError as error:
            _send(request, error=error)
        except Exception as error:  # like an exception of a model
            _send(request, error=internal(describe(error)))
        else:
            _send(request, empty=True)

    def _outputs(self, request: InferRequest, outputs: Outputs) -> list[Tensor]:
        wanted = request.requested_outputs or outputs
        for name in wanted:
            if name not in outputs:
                raise invalid_arg(
                    f"unexpected inference output '{name}' for model '{request.model_name}'"
                )
        return [tensor_of(name, outputs[name]) for name in wanted]


def _send(request: InferRequest, **fields: Any) -> None:  # noqa: ANN401 - those of InferResponse
    request.sink.send(InferResponse(request.model_name, 1, request.id, **fields))
