"""The records of a capture: what it is of, requests, responses, and how it ended.

All times are nanoseconds since the recording began, of a clock that never jumps. A capture begins
with its Opening; a Request stands before its Response; a Closing comes last, unless the recorder
was killed. Bodies are as they were on the wire, still compressed or chunks joined.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from triton_replay.errors import CaptureUnreadable
from triton_replay.wire.bodies import Body, Headers


@dataclass(frozen=True)
class Opening:
    """What the capture is of."""

    server: str
    started: str
    """The time of day, ISO 8601 in UTC."""
    version: str
    """Of triton-replay."""
    settings: Mapping[str, Any]
    """What was left out on purpose: `sample`, `seed`, `max_body`, `redact_headers`, ..."""


@dataclass(frozen=True)
class Request:
    """One request. `number` ties it to its response, `connection` to others of its connection."""

    number: int
    connection: int
    at: int
    """When its first byte came."""
    end: int
    """When its last byte came."""
    method: str
    target: str
    headers: Headers
    body_size: int
    """Bytes on the wire; `body` is empty instead where it was not kept."""
    body: Body = b""
    redacted: bool = False
    protocol: str = "http"
    """`http` or `grpc`, whose target is the path of the method and whose body holds messages."""

    @property
    def whole(self) -> bool:
        """Whether the body was kept."""
        return len(self.body) == self.body_size


@dataclass(frozen=True)
class StreamMessage:
    """A message on a gRPC stream; the first one that is sent is the body of the request."""

    number: int
    """Of the stream's request."""
    sent: bool
    """Whether the client did."""
    at: int
    body_size: int
    body: Body = b""
    """With gRPC's prefix of five bytes."""
    redacted: bool = False

    @property
    def whole(self) -> bool:
        """Whether the body was kept."""
        return len(self.body) == self.body_size


@dataclass(frozen=True)
class Response:
    """What the server answered to the request of this `number`."""

    number: int
    at: int
    """When its first byte came."""
    end: int
    """When its last byte came, or the connection ended."""
    status: int
    """0 where none came."""
    headers: Headers
    body_size: int
    body: Body = b""
    ended: str = "complete"
    """`complete`, or who closed the connection before: `server` or `client`."""
    parts: tuple[tuple[int, int], ...] = ()
    """Of a response in several chunks: for each its time and where it ends in the body."""
    redacted: bool = False
    trailers: Headers = ()
    """Of gRPC, with `grpc-status`."""

    @property
    def whole(self) -> bool:
        """Whether the body was kept."""
        return len(self.body) == self.body_size


@dataclass(frozen=True)
class Closing:
    """How the recording ended."""

    at: int
    reason: str
    """`stopped`, or what it ran out of."""
    counts: Mapping[str, int]
    """What is not in the capture, by reason."""


Record = Opening | Request | StreamMessage | Response | Closing
Traffic = Request | StreamMessage | Response

_KINDS: Final[Mapping[str, type[Record]]] = {
    "opening": Opening,
    "request": Request,
    "message": StreamMessage,
    "response": Response,
    "closing": Closing,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def encode_record(record: Record) -> tuple[bytes, Body]:
    """The meta and the body of its frame."""
    fields = dict(vars(record))
    body = fields.pop("body", b"")
    return json.dumps({"kind": _NAMES[type(record)], **fields}).encode(), body


def decode_record(meta: memoryview, body: memoryview) -> Record:
    """The record of a frame; its body stays a view. Raises CaptureUnreadable."""
    try:
        fields = json.loads(bytes(meta))
        kind = _KINDS[fields.pop("kind")]
        for key in {"headers", "trailers"} & fields.keys():
            fields[key] = tuple((str(name), str(value)) for name, value in fields[key])
        if kind in (Request, StreamMessage, Response):
            fields["body"] = body
        if kind is Response:
            fields["parts"] = tuple((int(at), int(end)) for at, end in fields["parts"])
        return kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"a record is none that this version knows: {bytes(meta[:80])!r}"
        raise CaptureUnreadable(text) from error


def as_json(record: Record) -> dict[str, Any]:
    """The record for people: its fields, without the body."""
    fields = asdict(record) if isinstance(record, Opening | Closing) else dict(vars(record))
    fields.pop("body", None)
    return fields
