"""`InferenceRequest`: one request, as a model receives it."""

from __future__ import annotations

import json
from collections.abc import Collection

from reference_server.backends.python_host.api.native import (
    MODULE,
    NotConstructible,
    incompatible_function,
)
from reference_server.backends.python_host.api.tensor import Tensor
from reference_server.core.request import InferRequest

_new = object.__new__
_compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class InferenceRequest(NotConstructible):
    """One request of the batch that `execute` is given; each keeps its own shapes.

    `_request` is the server's request, `_inputs` its tensors once somebody asked for them.
    """

    __slots__ = ("_declared_outputs", "_flags", "_inputs", "_request")
    __module__ = MODULE

    _request: InferRequest
    _declared_outputs: Collection[str]
    _inputs: list[Tensor] | None
    _flags: int

    @classmethod
    def _received(
        cls, request: InferRequest, declared_outputs: Collection[str]
    ) -> InferenceRequest:
        self = _new(cls)
        self._request = request
        self._declared_outputs = declared_outputs
        self._inputs = None
        self._flags = request.flags
        return self

    def inputs(self) -> list[Tensor]:
        """The inputs in the order in which the client sent them: a new list of the same tensors.

        Optional inputs that the client left out are absent.
        """
        if self._inputs is None:
            self._inputs = [Tensor._received(tensor) for tensor in self._request.inputs.values()]
        return self._inputs.copy()

    def request_id(self) -> str:
        """The client's identifier, empty if it gave none."""
        return self._request.id

    def correlation_id(self) -> int | str:
        """The sequence that the request belongs to, 0 if to none."""
        return self._request.correlation_id

    def requested_output_names(self) -> set[str]:
        """The outputs that the client wants, in a new set: all declared ones if it named none."""
        return set(self._request.requested_outputs or self._declared_outputs)

    def parameters(self) -> str:
        """The request's parameters as a JSON object, without those that the server consumes."""
        return _compact_json(dict(self._request.parameters))

    def flags(self) -> int:
        """The sequence flags: START is bit 0, END is bit 1."""
        return int(self._flags)

    def set_flags(self, flags: int) -> None:
        """Replace the flags that this object shows."""
        if not isinstance(flags, int) or not 0 <= flags < 1 << 32:
            raise incompatible_function(
                "set_flags", f"(self: {MODULE}.InferenceRequest, arg0: int) -> None", self, flags
            )
        self._flags = flags

    def timeout(self) -> int:
        """The client's time limit in microseconds, 0 if it set none."""
        return self._request.timeout_us

    def is_cancelled(self) -> bool:
        """Whether the client has given up."""
        return self._request.cancellation.is_cancelled
