"""The two messages that carry tensors, read and written around their bulk.

Protobuf copies every bytes field that it reads or writes. Raw tensors are the bulk of a request and
of a response, so they are taken out of the one, and put behind the rest of the other, by hand: a
request's are views of the bytes that arrived, a response's are copied once, into its message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError
from tritonclient.grpc.service_pb2 import ModelInferRequest

from reference_server.codecs import proto_fields, proto_pieces
from reference_server.codecs.proto_fields import Data, Place
from reference_server.codecs.proto_pieces import varint
from reference_server.core import gil
from reference_server.core.errors import internal

#: What Triton's gRPC library says of bytes that are no message of the method's kind.
UNREADABLE = "Unable to parse request"

#: Tags of length-delimited fields with numbers below 16 are one byte.
_LENGTH_DELIMITED = 2
_ID = 3 << 3 | _LENGTH_DELIMITED
_RAW_INPUT_CONTENTS = 7 << 3 | _LENGTH_DELIMITED
_RAW_OUTPUT_CONTENTS = bytes([6 << 3 | _LENGTH_DELIMITED])
_INFER_RESPONSE = bytes([2 << 3 | _LENGTH_DELIMITED])

#: Fields that are looked at before others are let in: as Python about a millisecond's work.
_FIELDS_AT_ONCE = 1 << 11
#: Bytes that protobuf reads in one go, on the event loop too; it takes them a millisecond at most.
LONG_HEAD = 1 << 15
#: Raw tensors of a request that are kept: more inputs has no model, and those behind are not read.
_MOST_RAW = 1 << 12

#: Pieces of a message in their order; joining them is the one copy.
Parts = Sequence[Data]


class ReceivedRequest(NamedTuple):
    """A request: all of the message but its id and `raw_input_contents`, which are views in `raw`.

    The message may be that of many requests, and is not to be changed. `head` is its bytes, if
    whoever read it keeps what they say, else None.
    """

    message: ModelInferRequest
    request_id: str
    raw: list[memoryview]
    head: bytes | None = None


def split(data: Data) -> tuple[Data, str | None, list[memoryview]]:
    """A request without its id and `raw_input_contents`, and these. Raises ServerError INTERNAL.

    With absurdly many of them the id stays where it is, and is None here.
    """
    groups: list[int] = []
    found: list[Place] = []
    position, end = 0, len(data)
    most = _FIELDS_AT_ONCE
    try:
        while position < end and len(found) < _MOST_RAW:
            start = position
            position = proto_fields.passed(data, start, most, groups, found, _MOST_RAW - len(found))
            if position == start:
                raise internal(UNREADABLE)
            if position < end:
                gil.back_off()  # so many fields no request needs
            most = proto_fields.FIELDS
        if groups:
            raise internal(UNREADABLE)
        if position < end:
            return _without_raw(data), None, _split_at(data, found)[2]
        return _split_at(data, found)
    except (UnicodeDecodeError, DecodeError):
        raise internal(UNREADABLE) from None


def _split_at(data: Data, found: list[Place]) -> tuple[Data, str, list[memoryview]]:
    """The same, if that is where its id and its `raw_input_contents` are."""
    view = memoryview(data)
    pieces: list[memoryview] = []
    raw: list[memoryview] = []
    request_id = ""
    kept_from = 0
    for start, content, end in found:
        if data[start] & 0x7F == _ID:
            request_id = str(view[content:end], "utf-8")
        else:
            raw.append(view[content:end])
        if kept_from < start:
            pieces.append(view[kept_from:start])
        kept_from = end
    if kept_from < len(data):
        pieces.append(view[kept_from:])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), request_id, raw


def _without_raw(data: Data) -> Data:
    """The message but for its `raw_input_contents`. Raises DecodeError."""
    head = bytearray(len(data))
    groups: list[int] = []
    position = size = 0
    while position < len(data):
        start = position
        position, size = proto_fields.without_raw(
            data, start, proto_fields.FIELDS, groups, head, size
        )
        if position == start:
            raise DecodeError("a field that is cut")
        gil.back_off()
    if groups:
        raise DecodeError("a group that is cut")
    return memoryview(head)[:size]


def is_large(data: Data, most_head: int, most_fields: int) -> bool:
    """Whether a request has so many fields, or bytes in others than `raw_input_contents`.

    Also if it is none, or has what is no field of today's schema.
    """
    position, head, end = 0, 0, len(data)
    try:
        for _ in range(most_fields):
            if position >= end:
                return head > most_head
            start = position
            tag = data[position]
            if tag & 0b1000_0111 != _LENGTH_DELIMITED:
                return True
            _, _, position = proto_fields.field(data, start, [])
            if position < 0:
                return True
            if tag != _RAW_INPUT_CONTENTS:
                head += position - start
    except DecodeError:
        pass
    return True


def parse(head: Data) -> ModelInferRequest:
    """The message that these bytes are. Raises ServerError INTERNAL if they are none."""
    message = ModelInferRequest()
    try:
        if len(head) > LONG_HEAD:
            proto_pieces.merge(message, head)
        else:
            message.MergeFromString(bytes(head))
    except DecodeError:
        raise internal(UNREADABLE) from None
    return message


def response_parts(head: bytes, raw: Parts) -> Parts:
    """A ModelInferResponse: `head` is the message without `raw_output_contents`, which follow."""
    parts: list[Data] = [head]
    for content in raw:
        parts.append(_RAW_OUTPUT_CONTENTS + varint(len(content)))
        parts.append(content)
    return parts


def streamed(response: Parts) -> Parts:
    """A ModelStreamInferResponse that holds `response` and no error."""
    return [_INFER_RESPONSE + varint(sum(map(len, response))), *response]
