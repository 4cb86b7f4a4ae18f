"""Requests whose JSON says the same, word for word, are read once.

A client in a loop sends the same JSON before ever new binary data. What was read from it is kept
by its bytes, so the next such request only has its tensors placed over its own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reference_server.codecs.infer_options import ResponseForm
from reference_server.core.dtypes import DataType
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.tensor import Shape, Tensor

#: Longer JSON holds data of its own, or is too seldom the same to be worth its memory.
LONGEST_HEADER = 4096
_MOST_HEADERS = 256


@dataclass(frozen=True, slots=True)
class _Template:
    """A request without its binary data; `inputs` with the size of each input's share of it."""

    id: str
    inputs: tuple[tuple[str, DataType | None, Shape, int], ...]
    binary_size: int
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    correlation_id: int | str
    flags: SequenceFlag
    priority: int
    timeout_us: int
    form: ResponseForm


class HeaderMemo:
    """The newest headers and what they say. Used by one thread."""

    def __init__(self) -> None:
        self._templates: dict[bytes, _Template] = {}

    def recall(
        self, header: bytes, model: str, data: memoryview, sink: ResponseSink
    ) -> tuple[InferRequest, ResponseForm] | None:
        """The request with this `header` and binary `data`, if the header is known.

        None also if `data` is not as long as the header says: reading it again finds the fault.
        """
        template = self._templates.get(header)
        if template is None or template.binary_size != len(data):
            return None
        inputs: dict[str, Tensor] = {}
        position = 0
        for name, datatype, shape, size in template.inputs:
            end = position + size
            inputs[name] = Tensor(name, datatype, shape, raw=data[position:end])
            position = end
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
        return request, template.form

    def keep(self, header: bytes, request: InferRequest, form: ResponseForm) -> None:
        """Remember what `header` says; all inputs of `request` have binary data."""
        if len(self._templates) >= _MOST_HEADERS:
            del self._templates[next(iter(self._templates))]  # the oldest
        inputs = tuple(
            (tensor.name, tensor.datatype, tensor.shape, tensor.byte_size)
            for tensor in request.inputs.values()
        )
        self._templates[header] = _Template(
            request.id,
            inputs,
            sum(size for *_, size in inputs),
            request.requested_outputs,
            request.parameters,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            form,
        )
