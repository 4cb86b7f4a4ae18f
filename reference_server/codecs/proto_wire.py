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

from reference_server.codecs import proto_pieces
from reference_server.codecs.proto_pieces import Data, read_varint, varint
from reference_server.core import turns
from reference_server.core.errors import internal

#: What Triton's gRPC library says of bytes that are no message of the method's kind.
UNREADABLE = "Unable to parse request"

#: Tags of length-delimited fields with numbers below 16 are one byte.
_LENGTH_DELIMITED = 2
_ID = 3 << 3 | _LENGTH_DELIMITED
_RAW_INPUT_CONTENTS = 7 << 3 | _LENGTH_DELIMITED
_RAW_OUTPUT_CONTENTS = bytes([6 << 3 | _LENGTH_DELIMITED])
_INFER_RESPONSE = bytes([2 << 3 | _LENGTH_DELIMITED])

#: Fields that are looked at before others are let in: less than half a millisecond's work.
_FIELDS_AT_ONCE = 1 << 11
#: Bytes that protobuf reads in one go, on the event loop too; it takes them a millisecond at most.
LONG_HEAD = 1 << 15
#: Pieces of a message that are kept before they are joined.
_MOST_PIECES = 1 << 10
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


def split(data: Data) -> tuple[Data, str, list[memoryview]]:
    """A request without its id and `raw_input_contents`, and these. Raises ServerError INTERNAL."""
    head = bytearray()
    pieces: list[memoryview] = []  # that follow it
    raw: list[memoryview] = []
    request_id = ""
    view = memoryview(data)
    position, kept_from, end = 0, 0, len(data)
    fields = 0
    try:
        while position < end:
            fields += 1
            if not fields % proto_pieces.FIELDS and fields > _FIELDS_AT_ONCE:
                turns.stand_back()  # so many fields no request needs
            start = position
            tag = data[position]
            position += 1
            if tag & 0b1000_0111 != _LENGTH_DELIMITED:
                tag, position = read_varint(data, start)
                if tag not in (_RAW_INPUT_CONTENTS, _ID):
                    position = proto_pieces.after_field(data, start)
                    continue
            length = data[position]
            position += 1
            if length & 0x80:
                length, position = read_varint(data, position - 1)
            position += length
            if position > end:
                raise internal(UNREADABLE)
            if tag in (_RAW_INPUT_CONTENTS, _ID):
                if tag == _ID:
                    request_id = str(view[position - length : position], "utf-8")
                elif len(raw) < _MOST_RAW:
                    raw.append(view[position - length : position])
                if kept_from < start:
                    pieces.append(view[kept_from:start])
                    if len(pieces) == _MOST_PIECES:
                        head += b"".join(pieces)
                        pieces.clear()
                kept_from = position
    except (IndexError, UnicodeDecodeError, DecodeError):
        raise internal(UNREADABLE) from None
    if kept_from < end:
        pieces.append(view[kept_from:])
    if not head and len(pieces) == 1:
        return pieces[0], request_id, raw
    rest = b"".join(pieces)
    return bytes(head) + rest if head else rest, request_id, raw


def takes_long(data: Data, most_head: int, most_fields: int) -> bool:
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
            length, position = read_varint(data, position + 1)
            position += length
            if tag != _RAW_INPUT_CONTENTS:
                head += position - start
    except IndexError:
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
