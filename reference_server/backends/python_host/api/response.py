"""`InferenceResponse`: what a model answers to one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reference_server.backends.python_host.api import parameters as own
from reference_server.backends.python_host.api.errors import TritonError, TritonModelException
from reference_server.backends.python_host.api.native import (
    MODULE,
    Native,
    incompatible_constructor,
)
from reference_server.backends.python_host.api.tensor import Tensor
from reference_server.core.request import Parameter
from reference_server.core.response import InferResponse


class InferenceResponse(Native):
    """The output tensors, or with `error` set why there are none.

    `parameters` go with the outputs to whoever asked. Raises TritonModelException if an output is
    None or a parameter is no bool, int or text, TypeError for other foreign values.
    """

    __slots__ = ("_error", "_output_tensors", "_parameters")
    __module__ = MODULE

    _output_tensors: list[Tensor]
    _error: TritonError | None
    _parameters: Mapping[str, Parameter]

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: own.Parameters | None = None,
    ) -> None:
        if not (isinstance(output_tensors, (list, tuple)) or _is_sequence(output_tensors)) or not (
            error is None or isinstance(error, TritonError)
        ):
            raise _foreign(output_tensors, error)
        for tensor in output_tensors:
            if tensor is None:
                raise TritonModelException(
                    "Output tensor for inference response should not be empty."
                )
            if not isinstance(tensor, Tensor):
                raise _foreign(output_tensors, error)
        self._output_tensors = list(output_tensors)
        self._error = error
        self._parameters = {} if parameters is None else own.checked(parameters)

    @classmethod
    def _received(cls, response: InferResponse) -> InferenceResponse:
        self = object.__new__(cls)
        self._output_tensors = [Tensor._received(tensor) for tensor in response.outputs]
        # Whatever a model's code was: in Triton 2.51.0 it arrives as INTERNAL.
        self._error = TritonError(response.error.message) if response.error else None
        self._parameters = dict(response.parameters)
        return self

    def output_tensors(self) -> list[Tensor]:
        """The outputs, in a new list."""
        return self._output_tensors.copy()

    def has_error(self) -> bool:
        """Whether this says why there are no outputs."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Why there are no outputs; None if there are."""
        return self._error

    def parameters(self) -> str:
        """The parameters as a JSON object."""
        return own.as_text(self._parameters)


def _is_sequence(value: object) -> bool:
    """Whether C++ reads elements from it: from whatever can be indexed."""
    return hasattr(type(value), "__getitem__") and not isinstance(value, (dict, str, bytes))


def _foreign(output_tensors: object, error: object) -> TypeError:
    invoked_with = (output_tensors,) if error is None else (output_tensors, error)
    return incompatible_constructor(
        f"InferenceResponse(output_tensors: List[{MODULE}.Tensor] = [],"
        f" error: {MODULE}.TritonError = None)",
        *invoked_with,
    )
