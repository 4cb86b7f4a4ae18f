"""The records of a capture: its opening, requests, responses, and its closing.

All times are nanoseconds of a monotonic clock since the start of the recording. A capture starts
with an Opening; a Request precedes its Response; a Closing is last, unless the recorder was killed.
Bodies are stored as on the wire, without decompression; chunks are joined.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from triton_replay.errors import CaptureUnreadable
from triton_replay.wire.bodies import Body, Headers

if TYPE_CHECKING:  # imports httptools, which reading captures does not need
    from triton_replay.wire.http_messages import Message


@dataclass(frozen=True)
class Opening:
    """The first record: server, start time and settings."""

    server: str
    started: str
    """Start time in ISO 8601, UTC."""
    version: str
    """Version of triton-replay."""
    settings: Mapping[str, Any]
    """Settings that limit the content: `sample`, `seed`, `max_body`, `redact_headers`, ..."""


class _WithBody:
    """A record with a body."""

    body_size: int
    body: Body

    @property
    def whole(self) -> bool:
        """True if the body is in the capture."""
        return len(self.body) == self.body_size


@dataclass(frozen=True)
class Request(_WithBody):
    """A request. Its response has the same `number`."""

    number: int
    connection: int
    """Number of the client's connection."""
    at: int
    """Time of the first byte."""
    end: int
    """Time of the last byte."""
    method: str
    target: str
    headers: Headers
    body_size: int
    """Size on the wire in bytes. `body` is empty if it was not kept."""
    body: Body = b""
    redacted: bool = False
    protocol: str = "http"
    """Either "http" or "grpc". With gRPC the target is the path of the method."""

    @classmethod
    def of(
        cls, number: int, connection: int, message: Message, end: int, method: str, target: str
    ) -> Request:
        """Return the request that arrived as `message`; see the fields for the arguments."""
        headers = message.all_headers()
        at, size, body = message.at, message.size, message.body
        return cls(number, connection, at, end, method, target, headers, size, body)


@dataclass(frozen=True)
class StreamMessage(_WithBody):
    """A message of a gRPC stream. The client's first message is the body of the Request."""

    number: int
    """Number of the stream's request."""
    sent: bool
    """True for messages of the client, False for those of the server."""
    at: int
    body_size: int
    body: Body = b""
    """The message with gRPC's prefix of five bytes."""
    redacted: bool = False


@dataclass(frozen=True)
class Response(_WithBody):
    """The response to the request with the same `number`."""

    number: int
    at: int
    """Time of the first byte."""
    end: int
    """Time of the last byte, or of the end of the connection."""
    status: int
    """Status of HTTP; 0 without a response."""
    headers: Headers
    body_size: int
    body: Body = b""
    ended: str = "complete"
    """Either "complete", or the side that closed the connection early: "server" or "client"."""
    parts: tuple[tuple[int, int], ...] = ()
    """For each of several chunks, its time and its end position in the body; else empty."""

    @classmethod
    def of(cls, number: int, message: Message, end: int, ended: str) -> Response:
        """Return the response that arrived as `message`; see the fields for the arguments."""
        return cls(
            number=number,
            at=message.at,
            end=end,
            status=message.status,
            headers=message.all_headers(),
            body_size=message.size,
            body=message.body,
            ended=ended,
            parts=message.chunks,
        )

    redacted: bool = False
    trailers: Headers = ()
    """Trailers of gRPC, with `grpc-status`."""


@dataclass(frozen=True)
class Closing:
    """The last record."""

    at: int
    reason: str
    """Either "stopped", or why the recording ended early."""
    counts: Mapping[str, int]
    """Numbers of requests that are not in the capture, by reason."""
    lateness: Mapping[str, int] = field(default_factory=dict)
    """For a replay: number of `requests` with a due time, number of `late` requests, and
    `largest` delay in nanoseconds."""


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
    """Encode a record as the meta and the body of a frame."""
    fields = dict(vars(record))
    body = fields.pop("body", b"")
    return json.dumps({"kind": _NAMES[type(record)], **fields}).encode(), body


def decode_record(meta: memoryview, body: memoryview) -> Record:
    """Decode the record of a frame, and check the types of its fields. The body stays a view.

    A capture is untrusted input that is printed, shown as HTML and sent to servers.

    Raises:
        CaptureUnreadable: The record is unknown, or a field is invalid.
    """
    try:
        data = bytes(meta)
        fields = json.loads(data)
        if b"\\ud" in data:
            # Raises UnicodeEncodeError for a lone surrogate, which cannot be printed.
            json.dumps(fields, ensure_ascii=False).encode()
        kind = _KINDS[fields.pop("kind")]
        for one in dataclasses.fields(kind):
            if one.name in fields:
                fields[one.name] = _check_field(one.name, fields[one.name], str(one.type))
        if kind in (Request, StreamMessage, Response):
            fields["body"] = body
        return kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f": {error}" if isinstance(error, _InvalidField) else ""
        text = f"found an unknown record {bytes(meta[:80])!r}{reason}"
        raise CaptureUnreadable(text) from error


class _InvalidField(ValueError):
    """The value of a field has a wrong type; the text describes both."""


_MOST: Final = 2**63 - 1
_NOT_SENT: Final = re.compile("[\r\n\0\u0100-\U0010ffff]")
"""Characters that end a line of HTTP or that HTTP cannot send."""
_VALUES: Final = {
    "protocol": ("http", "grpc"),
    "ended": ("complete", "server", "client"),
}
"""Allowed values by field."""


def _check_field(name: str, value: object, kind: str) -> object:
    """Check the value of a field; return it with tuples in place of lists. Raise _InvalidField."""
    valid = _CHECKS[kind](value)
    if name in ("method", "target"):
        valid = valid and not _NOT_SENT.search(str(value))
    if not valid or value not in _VALUES.get(name, (value,)):
        raise _InvalidField(f"field '{name}': found {repr(value)[:60]}, expected {kind}")
    if kind in ("Headers", _PARTS):
        assert isinstance(value, list)
        return tuple(tuple(pair) for pair in value)
    return value


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_header(pair: object) -> bool:
    """Return whether this is a header's name and value that can be sent as one line."""
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(text, str) and not _NOT_SENT.search(text) for text in pair)
    )


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _is_part(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))


_PARTS: Final = "tuple[tuple[int, int], ...]"
#: Checks of fields, by annotation.
_CHECKS: Final[Mapping[str, Callable[[object], bool]]] = {
    "int": _is_number,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "Headers": lambda value: isinstance(value, list) and all(map(_is_header, value)),
    _PARTS: lambda value: isinstance(value, list) and all(map(_is_part, value)),
    "Mapping[str, int]": _is_counts,
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
}


def as_json(record: Record) -> dict[str, Any]:
    """Return the fields of a record, without the body, for JSON."""
    fields = asdict(record) if isinstance(record, Opening | Closing) else dict(vars(record))
    fields.pop("body", None)
    return fields
