"""A memo of inference requests: what says the same, byte for byte, is read once.

A client in a loop sends the same JSON, or the same message, around ever new tensors, and counts its
requests by their ids. What was read is kept by the bytes that stay the same, so the next such
request only has its tensors placed over its own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from reference_server.codecs.response_forms import ResponseForm
from reference_server.core.dtypes import DataType
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.tensor import Shape, Tensor

#: What is longer holds data of its own, or is too seldom the same to be worth its memory.
LONGEST_KEY = 4096
_MOST_KEYS = 1024

V = TypeVar("V")


class RequestMemo(Generic[V]):
    """The newest keys and what they mean. Used by one thread."""

    def __init__(self) -> None:
        self._values: dict[bytes, V] = {}
        self.recall = self._values.get

    def keep(self, key: bytes, value: V) -> None:
        """Remember `value`, in the place of the oldest one if there are too many."""
        if len(self._values) >= _MOST_KEYS and key not in self._values:
            del self._values[next(iter(self._values))]
        self._values[key] = value


@dataclass(frozen=True, slots=True, eq=False)
class RequestTemplate:
    """A request without its id and data, and its response's form. The pattern of its requests.

    Without `eq`: templates are told apart by what they are, not by what they say.
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
        """The template that `request` was made by."""
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
        """The request to `model` with this id and these inputs."""
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
