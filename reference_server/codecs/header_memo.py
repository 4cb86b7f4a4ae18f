"""Requests whose JSON says the same, word for word, are read once.

A client in a loop sends the same JSON before ever new binary data, or beside ever new data in
shared memory. What was read from it is kept by its bytes, so the next such request only has its
tensors placed over its own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reference_server.codecs.infer_options import OutputForm, ResponseForm
from reference_server.codecs.spans import Span, Spans
from reference_server.core.dtypes import DataType
from reference_server.core.ports import Regions
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.tensor import Shape, Tensor

#: Longer JSON holds data of its own, or is too seldom the same to be worth its memory.
LONGEST_HEADER = 4096
_MOST_HEADERS = 256


@dataclass(frozen=True, slots=True)
class _Template:
    """A request without its data.

    `inputs` say where each one's data is: so many bytes of the binary data, or in shared memory.
    """

    id: str
    inputs: tuple[tuple[str, DataType | None, Shape, int | Span], ...]
    binary_size: int
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    correlation_id: int | str
    flags: SequenceFlag
    priority: int
    timeout_us: int
    form: ResponseForm
    places: tuple[tuple[str, Span, bool], ...]


class HeaderMemo:
    """The newest headers and what they say. Used by one thread."""

    def __init__(self) -> None:
        self._templates: dict[bytes, _Template] = {}

    def recall(
        self, header: bytes, model: str, data: memoryview, sink: ResponseSink, regions: Regions
    ) -> tuple[InferRequest, ResponseForm] | None:
        """The request with this `header` and binary `data`, if the header is known.

        None also if `data` is not as long as the header says: reading it again finds the fault.
        Raises ServerError for a region that is not there any more.
        """
        template = self._templates.get(header)
        if template is None or template.binary_size != len(data):
            return None
        inputs: dict[str, Tensor] = {}
        position = 0
        for name, datatype, shape, source in template.inputs:
            if isinstance(source, int):
                raw = data[position : position + source]
                position += source
            else:
                raw = regions.view(*source)
            inputs[name] = Tensor(name, datatype, shape, raw=raw)
        request = InferRequest(
            model,
            inputs,
            sink,
            id=template.id,
            requested_outputs=template.requested_outputs,
            parameters=template.parameters,
            correlation_id=template.correlation_id,
            flags=template.flags,
            priority=template.priority,
            timeout_us=template.timeout_us,
        )
        form = template.form
        if template.places:
            outputs = dict(form.outputs)
            for name, span, counts in template.places:
                place = regions.output_buffer(*span)
                if counts:
                    outputs[name] = OutputForm(buffer=place)
            form = ResponseForm(form.default, outputs)
        return request, form

    def keep(self, header: bytes, request: InferRequest, form: ResponseForm, spans: Spans) -> None:
        """Remember what `header` says; all inputs of `request` are binary or in `spans`."""
        if len(self._templates) >= _MOST_HEADERS:
            del self._templates[next(iter(self._templates))]  # the oldest
        inputs = tuple(
            (
                tensor.name,
                tensor.datatype,
                tensor.shape,
                spans.inputs.get(tensor.name, tensor.byte_size),
            )
            for tensor in request.inputs.values()
        )
        if spans.places:  # a place is good for one request
            without = {name: OutputForm() for name, _, counts in spans.places if counts}
            form = ResponseForm(form.default, {**form.outputs, **without})
        self._templates[header] = _Template(
            request.id,
            inputs,
            sum(source for *_, source in inputs if isinstance(source, int)),
            request.requested_outputs,
            request.parameters,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            form,
            tuple(spans.places),
        )
