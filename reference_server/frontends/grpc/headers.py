"""The headers of gRPC requests and responses.

Errors are found and answered as in Triton's gRPC library. Exception: if that library accepts
headers that HTTP/2 forbids (RFC 9113, section 8), the stream is reset.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote_from_bytes

from reference_server.frontends.grpc.calls import CallFailed, Status
from reference_server.frontends.grpc.http2 import header_blocks
from reference_server.frontends.grpc.http2.frames import ErrorCode
from reference_server.frontends.grpc.http2.header_blocks import Fields
from reference_server.frontends.grpc.messages import INFLATE
from reference_server.options import Compression

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[^\0\r\n]*")
_TIMEOUT = re.compile(rb"(\d+)([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
#: Timeouts are limited to this range: timers count milliseconds, and longer timeouts never end.
_SHORTEST_S, _LONGEST_S = 1e-3, 1e9
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
#: Fields of the gRPC protocol; all other fields are metadata.
_PROTOCOL = frozenset(
    (b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"host")
)
_CONTENT_TYPE = b"application/grpc"
#: Characters that are not percent-encoded in `grpc-message`: printable ASCII without "%".
_UNQUOTED = bytes(range(0x20, 0x7F)).replace(b"%", b"").decode()

_STATUS_200 = (b":status", b"200")
_TYPE = (b"content-type", _CONTENT_TYPE)
_ACCEPTED = (b"grpc-accept-encoding", b"identity, deflate, gzip")
#: The headers of responses with messages, by the messages' encoding.
OPENING = {
    encoding: header_blocks.write(
        [
            _STATUS_200,
            _TYPE,
            *([(b"grpc-encoding", encoding.encode())] if encoding != "identity" else []),
            _ACCEPTED,
        ]
    )
    for encoding in INFLATE
}
#: The trailers of a successful call.
OK_TRAILERS = header_blocks.write([(b"grpc-status", b"0")])


class MalformedHeaders(Exception):
    """The headers are not a gRPC request; the stream must be reset with `code`."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """The headers of a call.

    `timeout_s` is None without a deadline. `fields` are the metadata in their order, binary values
    decoded; `metadata` has the first value of each name.
    """

    path: str
    metadata: Mapping[str, str]
    fields: tuple[tuple[bytes, bytes], ...]
    timeout_s: float | None
    encoding: str
    accepted: tuple[str, ...]


def read_request(fields: Fields) -> RequestHeaders:
    """Parse the header fields of a request.

    Raises:
        MalformedHeaders: the stream must be reset.
        CallFailed: the call must be answered with a status.
    """
    pseudo: dict[bytes, bytes] = {}
    protocol: dict[bytes, bytes] = {}
    metadata: list[tuple[bytes, bytes]] = []
    for name, value in fields:
        if name[:1] == b":":  # before other fields, and each once (RFC 9113, section 8.3)
            if name not in _PSEUDO or name in pseudo or protocol or metadata:
                raise MalformedHeaders(ErrorCode.PROTOCOL_ERROR)
            pseudo[name] = value
            continue
        # RFC 9113, sections 8.2.1 and 8.2.2.
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or name in _CONNECTION:
            raise MalformedHeaders(ErrorCode.PROTOCOL_ERROR)
        if name in _PROTOCOL:
            protocol[name] = value
        else:
            metadata.append((name, _value(name, value)))
    _check(pseudo, protocol)
    encoding = protocol.get(b"grpc-encoding", b"identity").decode("latin-1")
    if encoding not in INFLATE:
        raise MalformedHeaders(ErrorCode.INTERNAL_ERROR)
    accepted = protocol.get(b"grpc-accept-encoding", b"").decode("latin-1").split(",")
    return RequestHeaders(
        pseudo.get(b":path", b"").decode("latin-1"),
        {
            name.decode(): value.decode("utf-8", "surrogateescape")
            for name, value in reversed(metadata)
        },
        tuple(metadata),
        _timeout_s(protocol.get(b"grpc-timeout")),
        encoding,
        tuple(name.strip() for name in accepted),
    )


def _check(pseudo: Mapping[bytes, bytes], protocol: Mapping[bytes, bytes]) -> None:
    """Find missing and invalid fields, in the order and with the texts of Triton's library."""
    content_type = protocol.get(b"content-type") or _CONTENT_TYPE
    suffix = content_type[len(_CONTENT_TYPE) :]
    if not content_type.startswith(_CONTENT_TYPE) or suffix[:1] not in (b"", b"+", b";"):
        raise MalformedHeaders(ErrorCode.INTERNAL_ERROR)
    if protocol.get(b"te", b"trailers") != b"trailers":
        raise MalformedHeaders(ErrorCode.INTERNAL_ERROR)
    if pseudo.get(b":scheme", b"http") not in (b"http", b"https"):
        raise MalformedHeaders(ErrorCode.INTERNAL_ERROR)
    if pseudo.get(b":method", b"POST") != b"POST":
        raise CallFailed(Status.UNKNOWN, "Bad method header")
    for name in (b":method", b"te", b":scheme", b":path", b":authority"):
        is_host = name == b":authority" and b"host" in protocol
        if not (name in pseudo or name in protocol or is_host):
            raise CallFailed(
                Status.UNKNOWN, f"Missing {':te' if name == b'te' else name.decode()} header"
            )


def _value(name: bytes, value: bytes) -> bytes:
    """Decode a metadata value. Binary values are base64; of several, the first is used."""
    if name.endswith(b"-bin"):
        first = value.partition(b",")[0].rstrip(b"=")
        try:
            return base64.b64decode(first + b"=" * (-len(first) % 4), validate=True)
        except binascii.Error:
            raise MalformedHeaders(ErrorCode.INTERNAL_ERROR) from None
    return value


def _timeout_s(value: bytes | None) -> float | None:
    if value is None:
        return None
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise MalformedHeaders(ErrorCode.INTERNAL_ERROR)
    number = int(found[1][:18])  # a value with more digits is years in any unit
    seconds = min(number * _UNIT_S[found[2]], _LONGEST_S)
    return max(seconds, _SHORTEST_S) if number else 0.0


def failure(status: Status, message: str, *, opened: bool) -> bytes:
    """Return the header block of a failed call; `opened` if its response has started."""
    # Without messages, headers and trailers are one block ("Trailers-Only" in gRPC's protocol).
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        text = quote_from_bytes(message.encode("utf-8", "replace"), _UNQUOTED)
        fields.append((b"grpc-message", text.encode()))
    return header_blocks.write(fields if opened else [_STATUS_200, _TYPE, *fields])


def response_encoding(level: Compression, accepted: tuple[str, ...]) -> str:
    """Choose the encoding of messages to a client, as gRPC does: higher levels compress more."""
    ranked = [name for name in ("gzip", "deflate") if name in accepted]
    if level is Compression.NONE or not ranked:
        return "identity"
    rank = {Compression.LOW: 0, Compression.MEDIUM: len(ranked) // 2, Compression.HIGH: -1}
    return ranked[rank[level]]
