"""What clients and the device service say to each other, as bytes: values in, values out.

A message is one packet of a SOCK_SEQPACKET connection, so none is ever seen by halves. All begin
with the same header. CONTROL is JSON. LARGE is JSON too large for a packet, in a file without a
name whose descriptor comes along. RUN and DONE are packed numbers: they are one execution and its
end (`executions`). Tensors never travel: a message says where they lie, in memory that both map.
What cannot be read raises Broken, whatever the bytes are.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, TypeAlias

from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.errors import (
    ArtifactFault,
    Cancelled,
    EngineFault,
    EngineLost,
    Expired,
    NoDevice,
    OutOfMemory,
    PlanFault,
    RuntimeFault,
    ServiceFault,
)
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.specs import DType

VERSION: Final = 2
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


class Broken(Exception):
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
    """The kind and the body of a packet; the body is a copy. Raises Broken."""
    try:
        magic, version, kind, length = _HEADER.unpack_from(packet)
    except struct.error:
        raise Broken(f"found {len(packet)} bytes, expected a header of {HEADER_BYTES}") from None
    if magic != _MAGIC:
        raise Broken(f"found {magic!r} at the start of a message, expected {_MAGIC!r}")
    if version != VERSION:
        raise Broken(f"found version {version} of the protocol, expected {VERSION}")
    if length != len(packet) - HEADER_BYTES:
        raise Broken(f"found {len(packet) - HEADER_BYTES} bytes of a message, expected {length}")
    try:
        return _KINDS[kind], bytes(packet[HEADER_BYTES:])
    except KeyError:
        raise Broken(f"found a message of kind {kind}, expected one of {list(_KINDS)}") from None


_KINDS: Final = {int(kind): kind for kind in Kind}


# ------------------------------------------------------------------------------------- control


def pack_json(message: Json) -> bytes:
    """The body of a CONTROL or LARGE message."""
    return json.dumps(message, separators=(",", ":")).encode()


def unpack_json(body: bytes) -> dict[str, Any]:
    """The opposite. Raises Broken if it is no object."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Broken(f"found a control message that is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise Broken(f"found {type(message).__name__} for a control message, expected an object")
    return message


def signature_as_json(signature: Signature) -> Json:
    """A signature, every tensor of it."""
    return {
        side: [[t.name, t.dtype.value, t.dims, t.symbols] for t in tensors]
        for side, tensors in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }


def signature_of(message: Json) -> Signature:
    """The opposite."""

    def tensors(side: str) -> tuple[GraphTensor, ...]:
        return tuple(
            GraphTensor(name, DType(dtype), None if dims is None else tuple(dims), tuple(symbols))
            for name, dtype, dims, symbols in message[side]
        )

    return Signature(tensors("inputs"), tensors("outputs"))


def intermediates_as_json(intermediates: Intermediates | None) -> Json | None:
    """What a graph holds, or None if nobody knows."""
    if intermediates is None:
        return None
    return {
        "lifetimes": [[o.name, o.nbytes, o.first, o.last] for o in intermediates.lifetimes],
        "unsized": intermediates.unsized,
    }


def intermediates_of(message: Json | None) -> Intermediates | None:
    """The opposite."""
    if message is None:
        return None
    lifetimes = tuple(Lifetime(*one) for one in message["lifetimes"])
    return Intermediates(lifetimes, message["unsized"])


# -------------------------------------------------------------------------------------- faults


class Remote(Exception):
    """What was behind a fault in the device service, in words: the cause of the fault here."""


_FAULTS: Final = {
    fault.__name__: fault
    for fault in (
        ArtifactFault,
        Cancelled,
        EngineFault,
        EngineLost,
        Expired,
        NoDevice,
        OutOfMemory,
        PlanFault,
        RuntimeFault,
        ServiceFault,
    )
}


def fault_as_json(error: Exception) -> list[str]:
    """Class, text and cause of what was raised. What nobody raises on purpose is a RuntimeFault."""
    cause = "" if error.__cause__ is None else _in_words(error.__cause__)
    for kind in type(error).__mro__:
        if kind.__name__ in _FAULTS:
            return [kind.__name__, str(error)[:_MOST_TEXT], cause]
    return [RuntimeFault.__name__, _in_words(error), cause]


def fault_of(message: Sequence[str]) -> RuntimeFault:
    """The opposite; a class that is not known here is a RuntimeFault."""
    name, text, cause = message
    fault = _FAULTS.get(name, RuntimeFault)(text)
    fault.__cause__ = Remote(cause) if cause else None
    return fault


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MOST_TEXT]
