"""The forms of requests, responses and specs in messages: JSON, with tensors in a parcel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from reference_server.backends.instances import InstanceSpec
from reference_server.backends.process_host.parcels import Parcel, ReceivedParcel
from reference_server.core import dtypes
from reference_server.core.errors import Code, ServerError
from reference_server.core.request import (
    Cancellation,
    Execution,
    InferRequest,
    InferResponse,
    RequestTrace,
    ResponseSink,
    SequenceFlag,
)
from reference_server.core.tensor import Tensor

#: The form of a value in a message: JSON's values, and for tensors where they lie.
Packed = list[Any]

# A test holds that every field of a request is in one of these three.
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
    "is_started",
)
#: Those that have a form of their own in a message.
CONVERTED = ("inputs", "parameters", "flags", "cancellation", "trace")
#: Those that mean something in the server alone.
LEFT_OUT = ("sink", "batch_key", "pattern", "timed")


def pack_tensors(parcel: Parcel, tensors: Iterable[Tensor]) -> list[Packed]:
    """Put tensors into the parcel; all or none. Raises ServerError if there is no room.

    What is packed of each is name, data type, shape, offset and size.
    """
    packed: list[Packed] = []
    mark = parcel.mark
    try:
        for tensor in tensors:
            assert tensor.datatype is not None, "no request of an unknown type gets this far"
            offset, size = parcel.put(tensor.raw())
            packed.append([tensor.name, tensor.datatype.value, tensor.shape, offset, size])
    except BaseException:
        parcel.take_back(mark)
        raise
    return packed


def unpack_tensors(parcel: ReceivedParcel, packed: Iterable[Packed]) -> list[Tensor]:
    """Tensors that view what came.

    Raises ValueError, TypeError or KeyError for what packs no tensor.
    """
    return [_unpack_tensor(parcel, *parts) for parts in packed]


def _unpack_tensor(
    parcel: ReceivedParcel, name: str, datatype: str, shape: list[int], offset: int, size: int
) -> Tensor:
    kind = dtypes.BY_NAME[datatype]
    if type(name) is not str:
        raise TypeError(f"found {name!r} for a tensor's name")
    fits = min(shape, default=0) >= 0 and size >= 0
    if not (fits and (kind.is_bytes or math.prod(shape) * kind.byte_size == size)):
        raise ValueError(f"found tensor '{name}' of shape {shape} in {size} bytes")
    return Tensor(name, kind, tuple(shape), raw=parcel.view(offset, size))


def pack_request(parcel: Parcel, request: InferRequest) -> Packed:
    """A request, without the way of its answers. Raises ServerError if there is no room."""
    return [
        [getattr(request, name) for name in PLAIN],
        dict(request.parameters),
        int(request.flags),
        request.cancellation.is_cancelled,
        None if request.trace is None else request.trace.context,
        pack_tensors(parcel, request.inputs.values()),
    ]


def unpack_request(
    parcel: ReceivedParcel,
    packed: Packed,
    sink: ResponseSink,
    traced: Callable[[str], RequestTrace] | None = None,
) -> InferRequest:
    """The request, whose answers go to `sink`; one with a trace has what `traced` makes of that.

    `traced` gets the trace's context.
    """
    plain, parameters, flags, is_cancelled, context, tensors = packed
    request = InferRequest(
        **dict(zip(PLAIN, plain, strict=True)),
        inputs={tensor.name: tensor for tensor in unpack_tensors(parcel, tensors)},
        sink=sink,
        parameters=parameters,
        flags=SequenceFlag(flags),
        cancellation=Cancellation(),
        trace=None if traced is None or context is None else traced(context),
    )
    request.requested_outputs = tuple(request.requested_outputs)
    if is_cancelled:
        request.cancellation.cancel()
    return request


def pack_response(parcel: Parcel, response: InferResponse) -> Packed:
    """One response; one that finds no room becomes an error."""
    error = response.error
    tensors: list[Packed] = []
    if error is None:
        try:
            tensors = pack_tensors(parcel, response.outputs)
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


def unpack_response(parcel: ReceivedParcel, packed: Packed) -> InferResponse:
    """The response, whose tensors view what came."""
    name, version, request_id, tensors, parameters, error, final, empty = packed
    kinds = (str, int, str, bool, bool)
    if tuple(map(type, (name, version, request_id, final, empty))) != kinds:
        raise TypeError(f"found a response of {packed!r:.200}")
    if any(type(key) is not str or isinstance(value, list | dict) for key, value in parameters):
        raise TypeError(f"found parameters {parameters!r:.200}")
    return InferResponse(
        name,
        version,
        request_id,
        unpack_tensors(parcel, tensors) if error is None else (),
        [(key, value) for key, value in parameters],
        None if error is None else ServerError(Code[error[0]], error[1]),
        final,
        empty,
    )


def pack_execution(parcel: Parcel, execution: Execution) -> Packed:
    """What an execution gave."""
    return [
        [
            None if response is None else pack_response(parcel, response)
            for response in execution.responses
        ],
        execution.input_end_ns,
        execution.output_start_ns,
        sorted(execution.rescheduled),
        execution.failed,
    ]


def unpack_execution(parcel: ReceivedParcel, packed: Packed) -> Execution:
    """The execution; its times are of the machine's monotonic clock, which all processes share."""
    responses, input_end_ns, output_start_ns, rescheduled, failed = packed
    if tuple(map(type, (input_end_ns, output_start_ns, failed))) != (int, int, bool):
        raise TypeError(f"found an execution of {packed[1:]!r:.200}")
    return Execution(
        [None if response is None else unpack_response(parcel, response) for response in responses],
        input_end_ns,
        output_start_ns,
        frozenset(rescheduled),
        failed,
    )


def pack_spec(spec: InstanceSpec) -> dict[str, Any]:
    """All that tells an instance from others: each field with the kind of its value."""
    return {
        field.name: _packed_field(getattr(spec, field.name)) for field in dataclasses.fields(spec)
    }


def _packed_field(value: object) -> tuple[str, object]:
    if isinstance(value, Path):
        return "path", str(value)
    if isinstance(value, frozenset):
        return "set", sorted(value)
    return "plain", value


def unpack_spec(values: dict[str, Any]) -> InstanceSpec:
    """The specification that was packed."""
    kinds: dict[str, Callable[[Any], Any]] = {
        "path": Path,
        "set": frozenset,
        "plain": lambda value: value,
    }
    return InstanceSpec(**{name: kinds[kind](value) for name, (kind, value) in values.items()})
