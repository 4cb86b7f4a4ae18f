"""Outputs whose config says `reshape`: the model makes one layout, clients are given another."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from reference_server.core.errors import ServerError, internal
from reference_server.core.metadata import Signature
from reference_server.core.ports import ModelInstance
from reference_server.core.request import InferRequest, ResponseSink
from reference_server.core.response import Execution, InferResponse
from reference_server.core.rules import reshaped
from reference_server.core.tensor import Shape, Tensor


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
        sinks = [request.sink for request in requests]
        for request in requests:
            request.sink = _ReshapingSink(self, request.sink)
        execution = self._instance.execute(requests)
        for request, sink in zip(requests, sinks, strict=True):
            request.sink = sink  # those that are given again get another
        for response in execution.responses:
            if response is not None:
                self.reshape(response)
        return execution

    def reshape(self, response: InferResponse) -> None:
        """Give the outputs of `response` the shapes that clients see, or an error if none does."""
        outputs: list[Tensor] = []
        for tensor in response.outputs:
            shape = self._shown(tensor)
            if prod(shape) != prod(tensor.shape):
                response.outputs, response.error = (), _misfit(tensor)
                return
            outputs.append(tensor.renamed(tensor.name, shape))
        response.outputs = outputs

    def _shown(self, tensor: Tensor) -> Shape:
        made, dims = self._layouts.get(tensor.name, (None, ()))
        inner = tensor.shape[self._first :]
        if made is None or len(inner) != len(made):
            return tensor.shape  # Triton checks no output shapes either
        return tensor.shape[: self._first] + reshaped(inner, made, dims)


def _misfit(tensor: Tensor) -> ServerError:
    return internal(f"output tensor shape does not match size of output for '{tensor.name}'")


class _ReshapingSink:
    """Takes what the model sends itself."""

    __slots__ = ("_reshaping", "_sink")

    def __init__(self, reshaping: _Reshaping, sink: ResponseSink) -> None:
        self._reshaping = reshaping
        self._sink = sink

    def send(self, response: InferResponse) -> None:
        self._reshaping.reshape(response)
        self._sink.send(response)
