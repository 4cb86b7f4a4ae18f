"""Parameters that a model gives to a request or a response of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping

from reference_server.backends.python_host.api.errors import TritonModelException
from reference_server.core.request import Parameter

#: What a model may give.
Parameters = Mapping[str, bool | int | str]

_INT64 = range(-(1 << 63), 1 << 63)


def checked(parameters: object) -> dict[str, Parameter]:
    """A copy of `parameters`, empty for None.

    Raises TritonModelException if it is no dict of texts to bool, int or text.
    """
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return dict(parameters)


def as_text(parameters: Mapping[str, Parameter]) -> str:
    """What `parameters()` of the model's own object shows."""
    return json.dumps(dict(parameters))


def are_sendable(parameters: Mapping[str, Parameter]) -> bool:
    """Whether all integers are of 64 bits."""
    return all(not isinstance(value, int) or value in _INT64 for value in parameters.values())
