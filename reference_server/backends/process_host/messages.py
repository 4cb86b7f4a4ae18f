"""Requests and responses as messages: their values as JSON, their tensors in shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reference_server.backends.process_host.link import Link
from reference_server.core import dtypes
from reference_server.core.cancellation import Cancellation
from reference_server.core.errors import Code, ServerError
from reference_server.core.request import InferRequest, RequestTrace, ResponseSink, SequenceFlag
from reference_server.core.response import Execution, InferResponse
from reference_server.core.tensor import Tensor

Head = list[Any]

#: The fields of a request that travel as they are.
PLAIN = (
    "model_name",
    "model_version",
    "id",
    "requested_outputs",
    "correlation_id",
    "priority",
    "timeout_us",
    "batch_size",
    "received_ns",
    "queued_ns",
    "is_begun",
)
#: Those that have a form of their own in a message.
CONVERTED = ("inputs", "parameters", "flags", "cancellation", "trace")
#: Those that mean something in the server alone.
LEFT_OUT = ("sink", "batch_key", "timed")


def pack_tensors(link: Link, tensors: Iterable[Tensor]) -> list[Head]:
    """Copy tensors into the memory of `link`; all or none. Raises ServerError if there is no room.

    Each head is name, data type, shape, offset and size.
    """
    heads: list[Head] = []
    try:
        for tensor in tensors:
            assert tensor.datatype is not None, "no request of an unknown type gets this far"
            offset, size = link.put(tensor.raw())
            heads.append([tensor.name, tensor.datatype.value, tensor.shape, offset, size])
    except BaseException:
        _take_back(link, heads)
        raise
    return heads


def _take_back(link: Link, heads: Iterable[Head]) -> None:
    link.take_back([offset for *_, offset, size in heads if size])


def unpack_tensors(link: Link, heads: Iterable[Head]) -> list[Tensor]:
    """Tensors that view the memory of `link`."""
    return [
        Tensor(name, dtypes.BY_NAME[datatype], tuple(shape), raw=link.view(offset, size))
        for name, datatype, shape, offset, size in heads
    ]


def pack_request(link: Link, request: InferRequest) -> Head:
    """A request, without the way of its answers. Raises ServerError if there is no room."""
    return [
        [getattr(request, name) for name in PLAIN],
        dict(request.parameters),
        int(request.flags),
        request.cancellation.is_cancelled,
        request.trace is not None,
        pack_tensors(link, request.inputs.values()),
    ]


def pack_requests(link: Link, requests: Iterable[InferRequest]) -> list[Head]:
    """The requests of a batch; all or none. Raises ServerError if there is no room."""
    heads: list[Head] = []
    try:
        heads.extend(pack_request(link, request) for request in requests)
    except BaseException:
        for *_, tensors in heads:
            _take_back(link, tensors)
        raise
    return heads


def unpack_request(
    link: Link, head: Head, sink: ResponseSink, trace: RequestTrace | None = None
) -> InferRequest:
    """The request, whose answers go to `sink`; it has `trace` if it had one."""
    plain, parameters, flags, is_cancelled, is_traced, tensors = head
    request = InferRequest(
        **dict(zip(PLAIN, plain, strict=True)),
        inputs={tensor.name: tensor for tensor in unpack_tensors(link, tensors)},
        sink=sink,
        parameters=parameters,
        flags=SequenceFlag(flags),
        cancellation=Cancellation(),
        trace=trace if is_traced else None,
    )
    request.requested_outputs = tuple(request.requested_outputs)
    if is_cancelled:
        request.cancellation.cancel()
    return request


def pack_response(link: Link, response: InferResponse) -> Head:
    """One response; one that finds no room becomes an error."""
    error = response.error
    tensors: list[Head] = []
    if error is None:
        try:
            tensors = pack_tensors(link, response.outputs)
        except ServerError as no_room:
            error = no_room
    return [
        response.model_name,
        response.model_version,
        response.id,
        tensors,
        response.parameters,
        None if error is None else [error.code.name, error.message],
        response.final,
        response.empty,
    ]


def unpack_response(link: Link, head: Head) -> InferResponse:
    """The response, whose tensors view the memory of `link`."""
    name, version, request_id, tensors, parameters, error, final, empty = head
    return InferResponse(
        name,
        version,
        request_id,
        unpack_tensors(link, tensors) if error is None else (),
        [(key, value) for key, value in parameters],
        None if error is None else ServerError(Code[error[0]], error[1]),
        final,
        empty,
    )


def pack_execution(link: Link, execution: Execution) -> Head:
    """What an execution gave."""
    return [
        [
            None if response is None else pack_response(link, response)
            for response in execution.responses
        ],
        execution.input_end_ns,
        execution.output_start_ns,
        sorted(execution.rescheduled),
        execution.failed,
    ]


def unpack_execution(link: Link, head: Head) -> Execution:
    """The execution; its times are of the machine's monotonic clock, which all processes share."""
    responses, input_end_ns, output_start_ns, rescheduled, failed = head
    return Execution(
        [None if response is None else unpack_response(link, response) for response in responses],
        input_end_ns,
        output_start_ns,
        frozenset(rescheduled),
        failed,
    )
