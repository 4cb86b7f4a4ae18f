"""The protocol between clients and the device service: messages to bytes and back.

A message is one packet of a SOCK_SEQPACKET connection, so none is ever seen by halves. All begin
with the same header. CONTROL is JSON. LARGE is JSON too large for a packet, in a file without a
name whose descriptor comes along. RUN and DONE are packed numbers: one execution, and its end.
Tensors never travel: a message says where they lie, in memory that both map. What cannot be read
raises ProtocolError, whatever the bytes are.
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
    NoDevice,
    OutOfMemory,
    PlanFault,
    RowsTaken,
    RuntimeFault,
    ServiceFault,
)
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.specs import DType

VERSION: Final = 4
"""Of all that follows. Both sides must have the same."""

MOST_BYTES: Final = 32 * 1024
"""Of one packet; the kernel's buffers take several."""
MOST_LARGE_BYTES: Final = 64 * 2**20
_MOST_TEXT: Final = 4096
"""Characters of a fault: with its cause it fits a packet, however JSON writes them."""

_MAGIC: Final = b"GErt"
_HEADER: Final = struct.Struct("<4sHHI")

HEADER_BYTES: Final = _HEADER.size
Json: TypeAlias = Mapping[str, Any]

MOST_DIMS: Final = 32
"""What NumPy 1 can have."""

NOWHERE: Final = 0xFFFFFFFF
"""The arena of a tensor without bytes, and of an output that the engine is to allocate."""

_RUN: Final = struct.Struct("<QdI")
_COUNTS: Final = struct.Struct("<HH")
_TENSOR: Final = struct.Struct("<HHIQ")
_DONE: Final = struct.Struct("<QddHH")
LAYOUT_AT: Final = _RUN.size
"""Where the layout begins in the body of a RUN: equal bytes mean equal arrays."""

BufferReference: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Where a tensor lies: arena, bytes from its start, shape."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The ends of all waits between clients and the device service."""

    start_s: float = 60.0
    """Until a service that is being started listens."""
    hung_s: float = 60.0
    """Without a sign of life: then it is killed. Opening a large model may stop it for a while."""
    probe_s: float = 5.0
    """Between two looks whether it lives."""
    run_s: float = 300.0
    """One execution. After that the device hangs, and the service with it: it ends itself."""
    grace_s: float = 10.0
    """How long a service without clients waits for the next one."""
    retry_s: float = 0.1
    """Before the first attempt to have it back; twice as long after each that fails."""
    most_retry_s: float = 10.0


class ProtocolError(Exception):
    """Bytes that are no message, or a message that is not what belongs here."""

    def __init__(self, text: str) -> None:
        """text: may quote what was found; of more than a fault can say only the beginning stays."""
        super().__init__(text[:_MOST_TEXT])


class Kind(IntEnum):
    """What a packet is."""

    CONTROL = 1
    LARGE = 2
    RUN = 3
    DONE = 4


def framed(kind: Kind, body: bytes) -> bytes:
    """The packet."""
    return _HEADER.pack(_MAGIC, VERSION, kind, len(body)) + body


def unframed(packet: bytes | memoryview) -> tuple[Kind, bytes]:
    """The kind and the body of a packet; the body is a copy. Raises ProtocolError."""
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
    # Packets come whole, but one that is larger than the receiver's buffer is cut off silently.
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
    """The body of a CONTROL or LARGE message."""
    return json.dumps(message, separators=(",", ":")).encode()


def unpack_json(body: bytes) -> dict[str, Any]:
    """The message in such a body. Raises ProtocolError if it is no object."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"found a control message that is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError(
            f"found {type(message).__name__} for a control message, expected an object"
        )
    return message


def signature_as_json(signature: Signature) -> Json:
    """A signature as JSON."""
    return {
        side: [[t.name, t.dtype.value, t.dims, t.symbols, t.aipp] for t in tensors]
        for side, tensors in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }


def signature_of(message: Json) -> Signature:
    """The signature in its JSON."""

    def tensors(side: str) -> tuple[GraphTensor, ...]:
        return tuple(
            GraphTensor(
                name, DType(dtype), None if dims is None else tuple(dims), tuple(symbols), aipp
            )
            for name, dtype, dims, symbols, aipp in message[side]
        )

    return Signature(tensors("inputs"), tensors("outputs"))


def intermediates_as_json(intermediates: Intermediates | None) -> Json | None:
    """A graph's intermediate results as JSON; None if nobody knows them."""
    if intermediates is None:
        return None
    return {
        "lifetimes": [[o.name, o.nbytes, o.first, o.last] for o in intermediates.lifetimes],
        "unsized": intermediates.unsized,
    }


def intermediates_of(message: Json | None) -> Intermediates | None:
    """The intermediate results in their JSON."""
    if message is None:
        return None
    lifetimes = tuple(Lifetime(*one) for one in message["lifetimes"])
    return Intermediates(lifetimes, message["unsized"])


# -------------------------------------------------------------------------------------- faults


class RemoteCause(Exception):
    """What was behind a fault in the device service, in words: the cause of the fault here."""


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
        NoDevice,
        OutOfMemory,
        PlanFault,
        RowsTaken,
        RuntimeFault,
        ServiceFault,
    )
}


def fault_as_json(error: Exception) -> list[str]:
    """Class, text and cause of what was raised. What nobody raises on purpose is a RuntimeFault."""
    cause = "" if error.__cause__ is None else _in_words(error.__cause__)
    # The nearest class that both sides know: a subclass keeps its meaning, not its name.
    for kind in type(error).__mro__:
        if kind.__name__ in _FAULTS:
            return [kind.__name__, str(error)[:_MOST_TEXT], cause]
    return [RuntimeFault.__name__, _in_words(error), cause]


def fault_of(message: Sequence[str]) -> RuntimeFault:
    """The fault in its JSON; of a class that is not known here, a RuntimeFault."""
    name, text, cause = message
    fault = _FAULTS.get(name, RuntimeFault)(text)
    fault.__cause__ = RemoteCause(cause) if cause else None
    return fault


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MOST_TEXT]


# ---------------------------------------------------------------------------------- executions


@dataclass(frozen=True, slots=True)
class ExecutionLayout:
    """Where the tensors of an execution lie."""

    inputs: tuple[BufferReference, ...]
    """In the order of the graph's signature, all of them."""
    outputs: tuple[tuple[int, BufferReference], ...]
    """Those that are wanted: the index in the signature, and where it lies."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an execution."""

    sequence: int
    waited_s: float
    """For its turn."""
    took_s: float
    allocated: tuple[tuple[int, BufferReference], ...] = ()
    """Outputs that the engine allocated: they are in the file whose descriptor comes along."""
    fault: Sequence[str] | None = None
    """As `fault_of` reads it; None if all went well."""


def pack_run(sequence: int, within_s: float, layout: bytes, filled: int = 0) -> bytes:
    """A RUN. within_s: how long it may wait for its turn; layout: see `pack_layout`.

    filled: how many rows are not padding; it matters where rows stay on the device.
    """
    return framed(Kind.RUN, _RUN.pack(sequence, within_s, filled) + layout)


def unpack_run(body: bytes) -> tuple[int, float, int]:
    """Sequence, waiting time and filled rows of a RUN, whose layout begins at LAYOUT_AT.

    Raises ProtocolError.
    """
    try:
        sequence, within_s, filled = _RUN.unpack_from(body)
    except struct.error:
        raise ProtocolError(f"found an execution of {len(body)} bytes, expected more") from None
    if within_s != within_s:  # NaN would never expire
        raise ProtocolError("found no number for the time to wait, expected seconds")
    return sequence, within_s, filled


def pack_layout(
    inputs: Sequence[BufferReference], outputs: Sequence[tuple[int, BufferReference]]
) -> bytes:
    """The bytes of a layout."""
    parts = [_COUNTS.pack(len(inputs), len(outputs))]
    for index, (arena, offset, shape) in (*enumerate(inputs), *outputs):
        parts.append(_TENSOR.pack(index, len(shape), arena, offset))
        parts.append(_dims(len(shape)).pack(*shape))
    return b"".join(parts)


def unpack_layout(data: bytes) -> ExecutionLayout:
    """The layout in its bytes; whether its arenas and outputs exist is not looked at.

    Raises ProtocolError.
    """
    try:
        given, wanted = _COUNTS.unpack_from(data)
        tensors, end = _unpack_tensors(data, _COUNTS.size, given + wanted)
    except struct.error as error:
        raise ProtocolError(f"found a layout cut short: {error}") from None
    if end != len(data):
        raise ProtocolError(f"found a layout of {len(data)} bytes, expected {end}")
    if [index for index, _ in tensors[:given]] != list(range(given)):
        raise ProtocolError("found inputs out of order, expected the graph's")
    return ExecutionLayout(tuple(buffer for _, buffer in tensors[:given]), tuple(tensors[given:]))


def pack_done(done: Done) -> bytes:
    """A DONE."""
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
    """The end of an execution in the body of a DONE. Raises ProtocolError."""
    try:
        sequence, waited_s, took_s, failed, count = _DONE.unpack_from(body)
        allocated, end = _unpack_tensors(body, _DONE.size, count)
    except struct.error as error:
        raise ProtocolError(f"found the end of an execution cut short: {error}") from None
    fault = None
    if failed:
        try:
            name, text, cause = json.loads(body[end:])
        except ValueError as error:
            raise ProtocolError(f"found a fault that is none: {error}") from None
        fault = [str(name), str(text), str(cause)]
    return Done(sequence, waited_s, took_s, tuple(allocated), fault)


def _unpack_tensors(
    data: bytes, at: int, count: int
) -> tuple[list[tuple[int, BufferReference]], int]:
    """So many tensors from there on, and where they end. Raises struct.error or ProtocolError."""
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


@lru_cache(MOST_DIMS + 1)  # a format for each rank, built once: this is on each execution's way
def _dims(rank: int) -> struct.Struct:
    return struct.Struct(f"<{rank}q")
