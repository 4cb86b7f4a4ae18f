"""A memo of inference requests: what says the same, byte for byte, is read once.

A client in a loop sends the same JSON, or the same message, around ever new tensors. What was read
is kept by its bytes, so the next such request only has its tensors placed over its own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from reference_server.codecs.response_forms import OutputForm, ResponseForm
from reference_server.core.dtypes import DataType
from reference_server.core.ports import Regions
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.tensor import Shape, Tensor

#: What is longer holds data of its own, or is too seldom the same to be worth its memory.
LONGEST_KEY = 4096
_MOST_KEYS = 256

#: A part of a shared memory region: its name, an offset and a size in bytes.
Span = tuple[str, int, int]
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
    """A request without its data, and the form of its response. It is the pattern of its requests.

    Without `eq`: templates are told apart by what they are, not by what they say.
    """

    model_name: str
    id: str
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
            request.id,
            tuple((each.name, each.datatype, each.shape) for each in request.inputs.values()),
            request.requested_outputs,
            request.parameters,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            form,
        )

    def request(self, model: str, inputs: dict[str, Tensor], sink: ResponseSink) -> InferRequest:
        """The request to `model` with these inputs."""
        return InferRequest(
            model,
            inputs,
            sink,
            id=self.id,
            requested_outputs=self.requested_outputs,
            parameters=self.parameters,
            correlation_id=self.correlation_id,
            flags=self.flags,
            priority=self.priority,
            timeout_us=self.timeout_us,
            pattern=self,
        )


@dataclass(slots=True)
class Spans:
    """What a JSON request takes from shared memory, and what it wants there.

    `outputs` are in the order of the request, with whether the output is to go there: one that was
    named before is not.
    """

    inputs: dict[str, Span] = field(default_factory=dict)
    outputs: list[tuple[str, Span, bool]] = field(default_factory=list)


class JsonTemplate:
    """The template of a JSON request whose tensors are binary data, or in shared memory."""

    def __init__(self, request: InferRequest, form: ResponseForm, spans: Spans) -> None:
        self._outputs = tuple(spans.outputs)
        if spans.outputs:  # a buffer in a region is good for one request
            without = {name: OutputForm() for name, _, counts in spans.outputs if counts}
            form = ResponseForm(form.default, {**form.outputs, **without})
        self._template = RequestTemplate.of(request, form)
        # Where each input's data is: so many bytes of the binary data, or in shared memory.
        sources = [spans.inputs.get(name, each.byte_size) for name, each in request.inputs.items()]
        self._inputs = tuple(zip(self._template.inputs, sources, strict=True))
        self.binary_size = sum(source for source in sources if isinstance(source, int))

    def fill(
        self, model: str, data: memoryview, sink: ResponseSink, regions: Regions
    ) -> tuple[InferRequest, ResponseForm]:
        """The request over `data`, which has `binary_size` bytes.

        Raises ServerError for a region that is not there any more.
        """
        inputs: dict[str, Tensor] = {}
        position = 0
        for (name, datatype, shape), source in self._inputs:
            if isinstance(source, int):
                raw = data[position : position + source]
                position += source
            else:
                raw = regions.read(*source)
            inputs[name] = Tensor(name, datatype, shape, raw=raw)
        form = self._template.form
        if self._outputs:
            outputs = dict(form.outputs)
            for name, span, counts in self._outputs:
                buffer = regions.output_buffer(*span)
                if counts:
                    outputs[name] = OutputForm(buffer=buffer)
            form = ResponseForm(form.default, outputs)
        return self._template.request(model, inputs, sink), form
