"""The protocol between clients and the device service: encoding and decoding of messages.

A message is one packet of a SOCK_SEQPACKET connection, so it is received whole. All messages have
the same header. There are four types of messages:

- CONTROL: JSON.
- LARGE: JSON that is too large for a packet, in an anonymous file whose descriptor is attached.
- RUN: a request to execute, as packed numbers.
- DONE: the result of an execution, as packed numbers.

Messages do not contain tensors, but the tensors' positions in shared memory. Malformed messages
raise ProtocolError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.errors import (
    ArtifactFault,
    Cancelled,
    EngineFault,
    EngineLost,
    Expired,
    HandleFault,
    HandleGone,
    InvalidValue,
    NoDevice,
    OutOfMemory,
    PlanFault,
    RowsTaken,
    RuntimeFault,
    ServiceFault,
)
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.specs import DType

VERSION: Final = 5
"""Version of the protocol, which must be equal on both sides."""

MOST_BYTES: Final = 32 * 1024
"""Maximum size of a packet; the kernel's buffers hold several packets."""
MOST_LARGE_BYTES: Final = 64 * 2**20
_MOST_TEXT: Final = 4096
"""Maximum length of a fault's text. Text and cause fit into a packet even with JSON escapes."""

_MAGIC: Final = b"GErt"
_HEADER: Final = struct.Struct("<4sHHI")

HEADER_BYTES: Final = _HEADER.size
Json: TypeAlias = Mapping[str, Any]

MOST_DIMS: Final = 32
"""Maximum rank, as in NumPy 1."""

NOWHERE: Final = 0xFFFFFFFF
"""The arena number of an empty tensor, and of an output that the engine has to allocate."""

_RUN: Final = struct.Struct("<QdI")
_COUNTS: Final = struct.Struct("<HH")
_TENSOR: Final = struct.Struct("<HHIQ")
_DONE: Final = struct.Struct("<QddHH")
LAYOUT_AT: Final = _RUN.size
"""Offset of the layout in the body of a RUN. Layouts with equal bytes refer to equal arrays."""

BufferReference: TypeAlias = tuple[int, int, tuple[int, ...]]
"""The position of a tensor: arena, offset in bytes, shape."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The time limits of clients and the device service, in seconds."""

    start_s: float = 60.0
    """Time in which a new service must listen."""
    hung_s: float = 60.0
    """Time in which a service must respond; otherwise it is killed. Opening a large model may block
    a service for a while."""
    probe_s: float = 5.0
    """Interval of the checks whether the service is alive."""
    run_s: float = 300.0
    """Duration of an execution after which the service assumes that the device hangs, and ends."""
    grace_s: float = 10.0
    """Time after which a service without clients ends."""
    retry_s: float = 0.1
    """Delay before the first attempt to reconnect; doubled after each failed attempt."""
    most_retry_s: float = 10.0
    """Maximum delay between two attempts to reconnect."""


class ProtocolError(Exception):
    """A malformed or unexpected message."""

    def __init__(self, text: str) -> None:
        """Create the error; the text may quote the message, and is truncated."""
        super().__init__(text[:_MOST_TEXT])


class Kind(IntEnum):
    """The type of a packet."""

    CONTROL = 1
    LARGE = 2
    RUN = 3
    DONE = 4


def framed(kind: Kind, body: bytes) -> bytes:
    """Return a packet: the header and the body."""
    return _HEADER.pack(_MAGIC, VERSION, kind, len(body)) + body


def unframed(packet: bytes | memoryview) -> tuple[Kind, bytes]:
    """Return the type of a packet and a copy of its body. Raises ProtocolError."""
    try:
        magic, version, kind, length = _HEADER.unpack_from(packet)
    except struct.error:
        raise ProtocolError(
            f"found {len(packet)} bytes, expected a header of {HEADER_BYTES}"
        ) from None
    if magic != _MAGIC:
        raise ProtocolError(f"found {magic!r} at the start of a message, expected {_MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(f"found version {version} of the protocol, expected {VERSION}")
    # A packet that is larger than the receiver's buffer is truncated silently.
    if length != len(packet) - HEADER_BYTES:
        raise ProtocolError(
            f"found {len(packet) - HEADER_BYTES} bytes of a message, expected {length}"
        )
    try:
        return _KINDS[kind], bytes(packet[HEADER_BYTES:])
    except KeyError:
        raise ProtocolError(
            f"found a message of kind {kind}, expected one of {list(_KINDS)}"
        ) from None


_KINDS: Final = {int(kind): kind for kind in Kind}


# ------------------------------------------------------------------------------------- control


def pack_json(message: Json) -> bytes:
    """Encode the body of a CONTROL or LARGE message."""
    return json.dumps(message, separators=(",", ":")).encode()


def unpack_json(body: bytes) -> dict[str, Any]:
    """Decode the body of a CONTROL or LARGE message. Raises ProtocolError."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"found a control message that is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError(
            f"found {type(message).__name__} for a control message, expected an object"
        )
    return message


def signature_as_json(signature: Signature) -> Json:
    """Convert a signature to JSON."""
    return {
        side: [[t.name, t.dtype.value, t.dims, t.symbols, t.aipp] for t in tensors]
        for side, tensors in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }


def signature_of(message: Json) -> Signature:
    """Convert JSON to a signature."""

    def tensors(side: str) -> tuple[GraphTensor, ...]:
        return tuple(
            GraphTensor(
                name, DType(dtype), None if dims is None else tuple(dims), tuple(symbols), aipp
            )
            for name, dtype, dims, symbols, aipp in message[side]
        )

    return Signature(tensors("inputs"), tensors("outputs"))


def intermediates_as_json(intermediates: Intermediates | None) -> Json | None:
    """Convert intermediate results to JSON."""
    if intermediates is None:
        return None
    return {
        "lifetimes": [[o.name, o.nbytes, o.first, o.last] for o in intermediates.lifetimes],
        "unsized": intermediates.unsized,
    }


def intermediates_of(message: Json | None) -> Intermediates | None:
    """Convert JSON to intermediate results."""
    if message is None:
        return None
    lifetimes = tuple(Lifetime(*one) for one in message["lifetimes"])
    return Intermediates(lifetimes, message["unsized"])


# -------------------------------------------------------------------------------------- faults


class RemoteCause(Exception):
    """The text of the exception that caused a fault in the device service."""


_FAULTS: Final = {
    fault.__name__: fault
    for fault in (
        ArtifactFault,
        Cancelled,
        EngineFault,
        EngineLost,
        Expired,
        HandleFault,
        HandleGone,
        InvalidValue,
        NoDevice,
        OutOfMemory,
        PlanFault,
        RowsTaken,
        RuntimeFault,
        ServiceFault,
    )
}


def fault_as_json(error: Exception) -> list[str]:
    """Convert an exception to class, text and cause; an unknown class becomes RuntimeFault."""
    cause = "" if error.__cause__ is None else _text(error.__cause__)
    # A class that the protocol does not have is sent as its nearest base class.
    for kind in type(error).__mro__:
        if kind.__name__ in _FAULTS:
            return [kind.__name__, str(error)[:_MOST_TEXT], cause]
    return [RuntimeFault.__name__, _text(error), cause]


def fault_of(message: Sequence[str]) -> RuntimeFault:
    """Convert class, text and cause to a fault; an unknown class becomes RuntimeFault."""
    name, text, cause = message
    fault = _FAULTS.get(name, RuntimeFault)(text)
    fault.__cause__ = RemoteCause(cause) if cause else None
    return fault


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MOST_TEXT]


# ---------------------------------------------------------------------------------- executions


@dataclass(frozen=True, slots=True)
class ExecutionLayout:
    """The positions of an execution's tensors."""

    inputs: tuple[BufferReference, ...]
    """All inputs, in the order of the graph's signature."""
    outputs: tuple[tuple[int, BufferReference], ...]
    """(index in the signature, position) of each requested output."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an execution."""

    sequence: int
    waited_s: float
    """Seconds in the queue."""
    took_s: float
    """Seconds of the execution."""
    allocated: tuple[tuple[int, BufferReference], ...] = ()
    """Outputs that the engine allocated, in the file whose descriptor is attached."""
    fault: Sequence[str] | None = None
    """The argument of `fault_of`; None after success."""


def pack_run(sequence: int, within_s: float, layout: bytes, filled: int = 0) -> bytes:
    """Encode a RUN packet.

    Args:
        sequence: Number of the execution, which DONE repeats.
        within_s: Maximum seconds in the queue.
        layout: The result of `pack_layout`.
        filled: Number of rows that are not padding, for tensors with resident rows.
    """
    return framed(Kind.RUN, _RUN.pack(sequence, within_s, filled) + layout)


def unpack_run(body: bytes) -> tuple[int, float, int]:
    """Return sequence, maximum waiting time and filled rows; the layout begins at LAYOUT_AT.

    Raises ProtocolError.
    """
    try:
        sequence, within_s, filled = _RUN.unpack_from(body)
    except struct.error:
        raise ProtocolError(f"found an execution of {len(body)} bytes, expected more") from None
    if within_s != within_s:  # NaN would never expire
        raise ProtocolError("found NaN as the time to wait, expected seconds")
    return sequence, within_s, filled


def pack_layout(
    inputs: Sequence[BufferReference], outputs: Sequence[tuple[int, BufferReference]]
) -> bytes:
    """Encode a layout."""
    parts = [_COUNTS.pack(len(inputs), len(outputs))]
    for index, (arena, offset, shape) in (*enumerate(inputs), *outputs):
        parts.append(_TENSOR.pack(index, len(shape), arena, offset))
        parts.append(_dims(len(shape)).pack(*shape))
    return b"".join(parts)


def unpack_layout(data: bytes) -> ExecutionLayout:
    """Decode a layout, without checking that its arenas and outputs exist.

    Raises ProtocolError.
    """
    try:
        given, wanted = _COUNTS.unpack_from(data)
        tensors, end = _unpack_tensors(data, _COUNTS.size, given + wanted)
    except struct.error as error:
        raise ProtocolError(f"found a truncated layout: {error}") from None
    if end != len(data):
        raise ProtocolError(f"found a layout of {len(data)} bytes, expected {end}")
    if [index for index, _ in tensors[:given]] != list(range(given)):
        raise ProtocolError("found inputs out of order, expected the graph's order")
    return ExecutionLayout(tuple(buffer for _, buffer in tensors[:given]), tuple(tensors[given:]))


def pack_done(done: Done) -> bytes:
    """Encode a DONE packet."""
    text = b"" if done.fault is None else json.dumps(list(done.fault)).encode()
    head = _DONE.pack(
        done.sequence, done.waited_s, done.took_s, done.fault is not None, len(done.allocated)
    )
    parts = [head]
    for index, (arena, offset, shape) in done.allocated:
        parts.append(_TENSOR.pack(index, len(shape), arena, offset))
        parts.append(_dims(len(shape)).pack(*shape))
    parts.append(text)
    return framed(Kind.DONE, b"".join(parts))


def unpack_done(body: bytes) -> Done:
    """Decode the body of a DONE packet. Raises ProtocolError."""
    try:
        sequence, waited_s, took_s, failed, count = _DONE.unpack_from(body)
        allocated, end = _unpack_tensors(body, _DONE.size, count)
    except struct.error as error:
        raise ProtocolError(f"found a truncated result: {error}") from None
    fault = None
    if failed:
        try:
            name, text, cause = json.loads(body[end:])
        except (ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(f"malformed fault record: {error}") from None
        fault = [str(name), str(text), str(cause)]
    return Done(sequence, waited_s, took_s, tuple(allocated), fault)


def _unpack_tensors(
    data: bytes, at: int, count: int
) -> tuple[list[tuple[int, BufferReference]], int]:
    """Decode `count` tensors at `at`, and return the end. Raises struct.error or ProtocolError."""
    tensors: list[tuple[int, BufferReference]] = []
    for _ in range(count):
        index, rank, arena, offset = _TENSOR.unpack_from(data, at)
        if rank > MOST_DIMS:
            raise ProtocolError(f"found a tensor of {rank} dims, expected at most {MOST_DIMS}")
        dims = _dims(rank)
        shape: tuple[int, ...] = dims.unpack_from(data, at + _TENSOR.size)
        if shape and min(shape) < 0:
            raise ProtocolError(f"found shape {list(shape)}, expected sizes of 0 or more")
        tensors.append((index, (arena, offset, shape)))
        at += _TENSOR.size + dims.size
    return tensors, at


@lru_cache(MOST_DIMS + 1)  # one entry for each rank
def _dims(rank: int) -> struct.Struct:
    return struct.Struct(f"<{rank}q")
