"""A cache of inference requests, by the bytes that repeat from one request to the next.

A client in a loop sends the same JSON or message with new tensors and a new id. The constant bytes
are parsed once; a later request with the same bytes only gets tensors over its own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from reference_server.codecs.response_forms import ResponseForm
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.tensor import DataType, Shape, Tensor

#: Longer keys contain data, or repeat too seldom to be worth their memory.
LONGEST_KEY = 4096
_MOST_KEYS = 1024

V = TypeVar("V")


class RequestCache(Generic[V]):
    """A cache of the newest keys. Used by one thread."""

    def __init__(self) -> None:
        self._values: dict[bytes, V] = {}
        self.find = self._values.get

    def keep(self, key: bytes, value: V) -> None:
        """Store `value`; it replaces the oldest one if the cache is full."""
        if len(self._values) >= _MOST_KEYS and key not in self._values:
            del self._values[next(iter(self._values))]
        self._values[key] = value


@dataclass(frozen=True, slots=True, eq=False)
class RequestTemplate:
    """A request without its id and data, and the form of its response.

    Requests made from a template have it as their `pattern`. Templates compare by identity, hence
    `eq=False`.
    """

    model_name: str
    inputs: tuple[tuple[str, DataType | None, Shape], ...]
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    correlation_id: int | str
    flags: SequenceFlag
    priority: int
    timeout_us: int
    form: ResponseForm

    @classmethod
    def of(cls, request: InferRequest, form: ResponseForm) -> RequestTemplate:
        """Make the template of `request`."""
        return cls(
            request.model_name,
            tuple((each.name, each.datatype, each.shape) for each in request.inputs.values()),
            request.requested_outputs,
            request.parameters,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            form,
        )

    def request(
        self, model: str, request_id: str, inputs: dict[str, Tensor], sink: ResponseSink
    ) -> InferRequest:
        """Make a request to `model` with this id and these inputs."""
        return InferRequest(
            model,
            inputs,
            sink,
            id=request_id,
            requested_outputs=self.requested_outputs,
            parameters=self.parameters,
            correlation_id=self.correlation_id,
            flags=self.flags,
            priority=self.priority,
            timeout_us=self.timeout_us,
            pattern=self,
        )
