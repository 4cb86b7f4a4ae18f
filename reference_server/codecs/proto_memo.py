"""Requests that say the same, but for their data, are read once.

A client in a loop sends the same message around ever new tensors. What was read from it is kept by
its bytes, as `header_memo` does it for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritonclient.grpc.service_pb2 import ModelInferRequest

from reference_server.codecs import proto_infer, proto_wire
from reference_server.codecs.infer_options import ResponseForm
from reference_server.codecs.proto_wire import Data, ReceivedRequest
from reference_server.core.dtypes import DataType
from reference_server.core.metadata import Signature
from reference_server.core.ports import Regions
from reference_server.core.request import InferRequest, Parameter, ResponseSink, SequenceFlag
from reference_server.core.tensor import Shape, Tensor

#: Longer heads hold data of their own, or are too seldom the same to be worth their memory.
_LONGEST_HEAD = 4_096
_MOST_HEADS = 256


@dataclass(frozen=True, slots=True)
class _Template:
    """A request without its data, all of which is raw; equal for all models of this name."""

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


class RequestMemo:
    """The newest heads and what they say. Used by one thread."""

    def __init__(self) -> None:
        self._messages: dict[bytes, ModelInferRequest] = {}
        self._templates: dict[bytes, _Template] = {}

    def read(self, data: Data) -> ReceivedRequest:
        """The request in `data`. Raises ServerError INTERNAL if it is none."""
        head, raw = proto_wire.split(data)
        message = self._messages.get(head)
        if message is None:
            message = proto_wire.parse(head)
            if len(head) > _LONGEST_HEAD:
                return ReceivedRequest(message, raw)
            if len(self._messages) >= _MOST_HEADS:
                oldest = next(iter(self._messages))
                del self._messages[oldest]
                self._templates.pop(oldest, None)
            self._messages[head] = message
        return ReceivedRequest(message, raw, head)

    def decode(
        self, signature: Signature, received: ReceivedRequest, sink: ResponseSink, regions: Regions
    ) -> tuple[InferRequest, ResponseForm]:
        """As `proto_infer.decode`, of what `read` gave."""
        head, raw = received.head, received.raw
        template = None if head is None else self._templates.get(head)
        if (
            template is None
            or len(raw) < len(template.inputs)
            or template.model_name != signature.name
        ):
            request, form = proto_infer.decode(signature, received, sink, regions)
            if head in self._messages and _is_plain(received):
                self._templates[head] = _template(request, form)
            return request, form
        inputs = {
            name: Tensor(name, datatype, shape, raw=data)
            for (name, datatype, shape), data in zip(template.inputs, raw, strict=False)
        }
        request = InferRequest(
            template.model_name,
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


def _is_plain(received: ReceivedRequest) -> bool:
    """True if all data is raw, and no output goes to a region: a place is good for one request."""
    message = received.message
    return len(received.raw) >= len(message.inputs) and not any(
        "shared_memory_region" in tensor.parameters
        for tensor in (*message.inputs, *message.outputs)
    )


def _template(request: InferRequest, form: ResponseForm) -> _Template:
    return _Template(
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
