"""Outputs whose config says `reshape`: they are made in one layout, clients are given another."""

from __future__ import annotations

from math import prod

from reference_server.core.errors import ServerError, internal
from reference_server.core.metadata import Signature
from reference_server.core.request import ResponseSink
from reference_server.core.response import InferResponse
from reference_server.core.rules import reshaped
from reference_server.core.tensor import Shape, Tensor


class OutputLayouts:
    """The outputs of a model that clients see in another layout; false if none. Immutable."""

    def __init__(self, signature: Signature) -> None:
        self._first = 1 if signature.batches else 0
        self._layouts = {
            output.name: (output.reshape, output.dims)
            for output in signature.outputs
            if output.reshape is not None
        }

    def __bool__(self) -> bool:
        return bool(self._layouts)

    def show(self, response: InferResponse) -> None:
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


class ShowingSink:
    """Shows each response before it goes on."""

    __slots__ = ("_layouts", "_sink")

    def __init__(self, layouts: OutputLayouts, sink: ResponseSink) -> None:
        self._layouts = layouts
        self._sink = sink

    def send(self, response: InferResponse) -> None:
        """Pass on `response` as clients see it."""
        self._layouts.show(response)
        self._sink.send(response)
