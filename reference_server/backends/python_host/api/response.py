"""`InferenceResponse`: what a model answers to one request."""

from __future__ import annotations

from collections.abc import Sequence

from reference_server.backends.python_host.api.errors import TritonError, TritonModelException
from reference_server.backends.python_host.api.native import (
    MODULE,
    Native,
    incompatible_constructor,
)
from reference_server.backends.python_host.api.tensor import Tensor


class InferenceResponse(Native):
    """The output tensors, or with `error` set why there are none.

    Raises TritonModelException if an output is None, TypeError for other foreign values.
    """

    __slots__ = ("_error", "_output_tensors")
    __module__ = MODULE

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        if not isinstance(output_tensors, (list, tuple)) or not (
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

    def output_tensors(self) -> list[Tensor]:
        """The outputs, in a new list."""
        return self._output_tensors.copy()

    def has_error(self) -> bool:
        """Whether this says why there are no outputs."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Why there are no outputs; None if there are."""
        return self._error


def _foreign(output_tensors: object, error: object) -> TypeError:
    invoked_with = (output_tensors,) if error is None else (output_tensors, error)
    return incompatible_constructor(
        f"InferenceResponse(output_tensors: List[{MODULE}.Tensor] = [],"
        f" error: {MODULE}.TritonError = None)",
        *invoked_with,
    )
