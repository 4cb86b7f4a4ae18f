"""What a model may give to the constructor of `InferenceRequest`, as C++ takes it in Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference_server.backends.python_host.api import parameters as own
from reference_server.backends.python_host.api.asking import Question
from reference_server.backends.python_host.api.errors import TritonModelException
from reference_server.backends.python_host.api.memory import PreferredMemory
from reference_server.backends.python_host.api.native import (
    MODULE,
    NO_CAST,
    incompatible_constructor,
)
from reference_server.backends.python_host.api.tensor import Tensor
from reference_server.backends.python_host.api.trace import InferenceTrace
from reference_server.core.request import LATEST

#: Stands for what the caller left out.
LEFT_OUT: Any = object()
UNTRACED = InferenceTrace._of(None)

_SIGNATURE = (
    "InferenceRequest(request_id: str = '', correlation_id: object = 0, "
    "inputs: List[triton::backend::python::PbTensor], requested_output_names: List[str], "
    "model_name: str, model_version: int = -1, flags: int = 0, timeout: int = 0, "
    f"preferred_memory: {MODULE}.PreferredMemory = <{MODULE}.PreferredMemory object>, "
    f"trace: {MODULE}.InferenceTrace = <{MODULE}.InferenceTrace object>, "
    "parameters: object = None)"
)
_DEFAULTS = {
    "request_id": "",
    "correlation_id": 0,
    "model_version": LATEST,
    "flags": 0,
    "timeout": 0,
    "trace": UNTRACED,
    "parameters": None,
}


def checked_question(**given: Any) -> Question:  # noqa: ANN401 - whatever the model passed
    """The question that the constructor's arguments make.

    Raises TypeError for arguments of other types, TritonModelException for other values.
    """
    inputs, names = given["inputs"], given["requested_output_names"]
    memory, model_name = given["preferred_memory"], given["model_name"]
    if not (
        isinstance(given["request_id"], (str, bytes))
        and given["correlation_id"] is not None
        and _is_list(inputs, (Tensor, type(None)))
        and _is_list(names, str)
        and isinstance(model_name, str)
        and _is_integer(given["model_version"], 64, signed=True)
        and _is_integer(given["flags"], 32)
        and _is_integer(given["timeout"], 64)
        and (memory is LEFT_OUT or isinstance(memory, PreferredMemory))
        and isinstance(given["trace"], InferenceTrace)
    ):
        raise _foreign(given)
    identity = given["request_id"]
    if isinstance(identity, bytes):
        identity = identity.decode()
    of = f"for request with id '{identity}' and model name '{model_name}' should not be empty."
    if any(tensor is None for tensor in inputs):
        raise TritonModelException(f"Input tensor {of}")
    if "" in names:
        raise TritonModelException(f"Requested output name {of}")
    return Question(
        model_name,
        given["model_version"],
        identity,
        _checked_correlation(given["correlation_id"]),
        tuple(inputs),
        tuple(names),
        given["flags"],
        given["timeout"],
        None if memory is LEFT_OUT else memory._memory_type,
        given["trace"]._trace,
        own.checked(given["parameters"]),
    )


def _foreign(arguments: dict[str, Any]) -> TypeError:
    # Whether they were given by name cannot be told any more.
    given = [
        f"{name}={value!r}"
        for name, value in arguments.items()
        if value is not LEFT_OUT and value is not _DEFAULTS.get(name, LEFT_OUT)
    ]
    return incompatible_constructor(_SIGNATURE, shown=f"kwargs: {', '.join(given)}")


def _is_list(value: object, kind: type | tuple[type, ...]) -> bool:
    """Whether C++ takes `value` for a list of `kind`."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and all(isinstance(element, kind) for element in value)
    )


def _is_integer(value: object, bits: int, *, signed: bool = False) -> bool:
    least = -(1 << (bits - 1)) if signed else 0
    return isinstance(value, int) and least <= value < least + (1 << bits)


def _checked_correlation(correlation_id: object) -> int | str:
    if isinstance(correlation_id, str):
        return correlation_id
    if not isinstance(correlation_id, int):
        raise TritonModelException("Correlation ID must be integer or string")
    if not 0 <= correlation_id < 1 << 64:
        raise RuntimeError(NO_CAST)
    return int(correlation_id)
