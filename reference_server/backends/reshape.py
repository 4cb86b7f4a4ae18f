"""Outputs whose config says `reshape`: the model makes one layout, clients are given another."""

from __future__ import annotations

from collections.abc import Sequence

from reference_server.core.metadata import Signature
from reference_server.core.ports import ModelInstance
from reference_server.core.request import InferRequest
from reference_server.core.response import Execution
from reference_server.core.rules import reshaped
from reference_server.core.tensor import Tensor


def with_reshaped_outputs(instance: ModelInstance, signature: Signature) -> ModelInstance:
    """`instance`, giving every output in its `dims`; the same object if there is nothing to do."""
    if all(output.reshape is None for output in signature.outputs):
        return instance
    return _Reshaping(instance, signature)


class _Reshaping:
    """An instance that renames the shapes of another's outputs."""

    def __init__(self, instance: ModelInstance, signature: Signature) -> None:
        self._instance = instance
        self._first = 1 if signature.batches else 0
        self._layouts = {
            output.name: (output.reshape, output.dims)
            for output in signature.outputs
            if output.reshape is not None
        }

    @property
    def name(self) -> str:
        return self._instance.name

    def open(self) -> None:
        self._instance.open()

    def close(self) -> None:
        self._instance.close()

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        execution = self._instance.execute(requests)
        for response in execution.responses:
            if response is not None:
                response.outputs = [self._reshape(tensor) for tensor in response.outputs]
        return execution

    def _reshape(self, tensor: Tensor) -> Tensor:
        made, dims = self._layouts.get(tensor.name, (None, ()))
        inner = tensor.shape[self._first :]
        if made is None or len(inner) != len(made):
            return tensor  # Triton checks no output shapes either
        shape = tensor.shape[: self._first] + reshaped(inner, made, dims)
        return tensor.renamed(tensor.name, shape)
