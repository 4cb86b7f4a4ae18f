"""Converts requests, responses and model specifications to messages.

A message is JSON. Its tensors are in a parcel: small tensors in the message itself, larger tensors
in shared memory. A block of shared memory costs a table entry on each side, and a report when the
block is free again. For few bytes a copy through the socket is faster.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from reference_server.backends.instances import InstanceSpec
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
from reference_server.core.tensor import DATATYPES, Tensor

#: The size limit in bytes of tensors in the message itself. Both sides use it.
SMALL_BYTES = 4096
#: Enough for every element type.
_ALIGNMENT = 8


class Room(Protocol):
    """The shared memory of a connection."""

    def put(self, data: memoryview) -> int:
        """Copy `data` into shared memory; return the offset. Raises ServerError."""

    def free_unsent(self, offsets: list[int]) -> None:
        """Free blocks whose offsets were not sent."""

    def view(self, offset: int, size: int) -> memoryview:
        """Return a writable view of a block. Raises ValueError."""


class Parcel:
    """The tensors of a message to send. `data` holds the small tensors."""

    def __init__(self, room: Room) -> None:
        self.data = bytearray()
        self._room = room
        self._blocks: list[int] = []

    def put(self, content: memoryview) -> tuple[int, int]:
        """Add bytes; return their offset and size. Raises ServerError without room."""
        size = len(content)
        if size > SMALL_BYTES:
            offset = self._room.put(content)
            self._blocks.append(offset)
            return offset, size
        data = self.data
        offset = len(data)
        data += content
        if unaligned := size % _ALIGNMENT:
            data += bytes(_ALIGNMENT - unaligned)
        return offset, size

    @property
    def mark(self) -> int:
        return len(self._blocks)

    def free_unsent(self, mark: int = 0) -> None:
        """Free the blocks added since `mark`, whose offsets are not sent."""
        self._room.free_unsent(self._blocks[mark:])
        del self._blocks[mark:]


class ReceivedParcel:
    """The tensors of a received message."""

    __slots__ = ("_data", "_room")

    def __init__(self, room: Room, data: bytearray) -> None:
        self._room = room
        self._data = memoryview(data)

    def view(self, offset: int, size: int) -> memoryview:
        """Return a writable view of bytes that `put` has added.

        Raises ValueError if the range is invalid, or if shared memory was viewed before.
        """
        if size > SMALL_BYTES:
            return self._room.view(offset, size)
        if not 0 <= offset <= len(self._data) - size:
            raise ValueError(f"found a tensor at {offset} in a parcel of {len(self._data)} bytes")
        return self._data[offset : offset + size]


#: A value in a message: JSON values, with the offset and size of each tensor.
Packed = list[Any]

# Every field of a request is in one of these three lists; a test checks it.
#: The fields that are sent unchanged.
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
#: The fields that are converted.
CONVERTED = ("inputs", "parameters", "flags", "cancellation", "trace")
#: The fields that have a meaning only in the server.
LEFT_OUT = ("sink", "batch_key", "pattern", "timed")


def pack_tensors(parcel: Parcel, tensors: Iterable[Tensor]) -> list[Packed]:
    """Add tensors to the parcel, all or none.

    Returns:
        For each tensor its name, data type, shape, offset and size.

    Raises:
        ServerError: There is no room.
    """
    packed: list[Packed] = []
    mark = parcel.mark
    try:
        for tensor in tensors:
            assert tensor.datatype is not None, "unknown data types are refused earlier"
            offset, size = parcel.put(tensor.raw())
            packed.append([tensor.name, tensor.datatype.value, tensor.shape, offset, size])
    except BaseException:
        parcel.free_unsent(mark)
        raise
    return packed


def unpack_tensors(parcel: ReceivedParcel, packed: Iterable[Packed]) -> list[Tensor]:
    """Return tensors that are views of the received bytes.

    Raises ValueError, TypeError or KeyError for values that are not packed tensors.
    """
    return [_unpack_tensor(parcel, *parts) for parts in packed]


def _unpack_tensor(
    parcel: ReceivedParcel, name: str, datatype: str, shape: list[int], offset: int, size: int
) -> Tensor:
    kind = DATATYPES[datatype]
    if type(name) is not str:
        raise TypeError(f"tensor name: found {name!r}; expected str")
    fits = min(shape, default=0) >= 0 and size >= 0
    if not (fits and (kind.is_bytes or math.prod(shape) * kind.byte_size == size)):
        raise ValueError(f"tensor '{name}': found shape {shape} and {size} bytes")
    return Tensor(name, kind, tuple(shape), raw=parcel.view(offset, size))


def pack_request(parcel: Parcel, request: InferRequest) -> Packed:
    """Pack a request without its sink. Raises ServerError if there is no room."""
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
    """Return the request with the sink `sink`.

    `traced` creates the trace of a request from the context of the server's trace.
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
    """Pack a response. If there is no room for its tensors, pack an error instead."""
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
    """Return the response; its tensors are views of the received bytes."""
    name, version, request_id, tensors, parameters, error, final, empty = packed
    kinds = (str, int, str, bool, bool)
    if tuple(map(type, (name, version, request_id, final, empty))) != kinds:
        raise TypeError(f"response: found {packed!r:.200}")
    if any(type(key) is not str or isinstance(value, (list, dict)) for key, value in parameters):
        raise TypeError(f"response parameters: found {parameters!r:.200}")
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
    """Pack the result of an execution."""
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
    """Return the result of an execution. Its monotonic times are valid in all processes."""
    responses, input_end_ns, output_start_ns, rescheduled, failed = packed
    if tuple(map(type, (input_end_ns, output_start_ns, failed))) != (int, int, bool):
        raise TypeError(f"execution: found {packed[1:]!r:.200}")
    return Execution(
        [None if response is None else unpack_response(parcel, response) for response in responses],
        input_end_ns,
        output_start_ns,
        frozenset(rescheduled),
        failed,
    )


def pack_spec(spec: InstanceSpec) -> dict[str, Any]:
    """Pack a specification: each field with the type of its value."""
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
    """Return the specification."""
    kinds: dict[str, Callable[[Any], Any]] = {"path": Path, "set": frozenset}
    return InstanceSpec(
        **{
            name: kinds[kind](value) if kind in kinds else value
            for name, (kind, value) in values.items()
        }
    )
