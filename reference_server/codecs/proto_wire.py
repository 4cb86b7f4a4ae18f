"""Reads ModelInferRequest and writes ModelInferResponse without copies of raw tensors by protobuf.

Protobuf copies every bytes field that it reads or writes. Raw tensors are most of a request and of
a response, so this module cuts them out of the request, and appends them to the response. The
tensors of a request are views of the received bytes; the tensors of a response are copied once,
into its message.

Long messages are parsed in pieces, between which other threads can run. Protobuf holds the GIL
while it parses, up to 0.2 microseconds for each byte of a hostile message. The rest of a message
can be merged into its parsed part, so a long message is cut between its fields; a long field is cut
between the fields of its message, or between its numbers. Pieces contain whole fields, so only
protobuf decides what they mean and whether they are valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc.service_pb2 import InferParameter, ModelInferRequest

from reference_server.codecs import proto_fields
from reference_server.codecs.inference import Span
from reference_server.codecs.proto_fields import Data, Place
from reference_server.core import gil
from reference_server.core.errors import ServerError, internal, invalid_arg

#: Bytes that protobuf parses in one call: mostly less than a millisecond of work.
PIECE = 1 << 13
#: The longest text, or parameter with a text: some 20 milliseconds of work.
LONGEST_TEXT = 1 << 24


def varint(value: int) -> bytes:
    """Encode a number as a varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def merge(message: Message, data: Data) -> None:
    """Parse `data` into `message`. Raises DecodeError.

    One element of bytes, and a text, are parsed in one call; a text may not be longer than
    `LONGEST_TEXT`.
    """
    position, end = 0, len(data)
    view = memoryview(data)
    while end - position > PIECE:
        piece = bytes(view[position : position + PIECE])
        length = _whole_fields(piece)
        if length:
            message.MergeFromString(piece[:length])
            position += length
            gil.yield_gil()
        else:
            position = _merge_long_field(message, view, position)
    message.MergeFromString(bytes(view[position:]))


def _whole_fields(piece: bytes) -> int:
    """Return the number of bytes of `piece` that are whole fields."""
    position, groups = 0, list[int]()
    while position < len(piece):
        start = position
        position = proto_fields.pass_fields(piece, start, proto_fields.FIELDS, groups)
        if position == start:
            break
        if position < len(piece):
            gil.yield_gil()
    return groups[0] if groups else position


def _merge_long_field(message: Message, data: memoryview, start: int) -> int:
    """Parse the field at `start`, which is longer than a piece, and return its end."""
    groups: list[int] = []
    tag, position, end = proto_fields.read_field(data, start, groups)
    while groups:  # unknown fields: the schema has no groups
        position = end
        end = proto_fields.pass_groups(data, position, proto_fields.FIELDS, groups)
        if end == position:
            end = -1
            break
        gil.yield_gil()
    if end < 0:
        raise DecodeError("a truncated field")
    if tag & 7 != _LENGTH_DELIMITED:
        return end
    number = tag >> 3
    field = _long_fields(message.DESCRIPTOR).get(number)
    content = data[position:end]
    if field is None:
        if len(content) > LONGEST_TEXT and number in _texts(message.DESCRIPTOR):
            raise DecodeError("a text that is too long")
        message.MergeFromString(bytes(data[start:end]))
    elif field.message_type is not None:
        found = getattr(message, field.name)
        if field.is_repeated:
            found = found.add()
        else:
            found.SetInParent()
        merge(found, content)
    else:
        _merge_numbers(message, varint(tag), content, _WIDTHS.get(field.type, 0))
    return end


def _merge_numbers(message: Message, tag: bytes, content: memoryview, width: int) -> None:
    """Parse packed numbers of `width` bytes each, or varints if `width` is 0."""
    position, end = 0, len(content)
    while position < end:
        piece = bytes(content[position : position + PIECE])
        if not width and position + PIECE < end:
            last = len(piece)
            while last and piece[last - 1] >= 0x80:
                last -= 1
            piece = piece[:last]
        if not piece:
            raise DecodeError("a truncated number")
        message.MergeFromString(tag + varint(len(piece)) + piece)
        position += len(piece)
        gil.yield_gil()


_WIDTHS: Mapping[int, int] = {
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
}
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


@cache
def _long_fields(descriptor: Descriptor) -> Mapping[int, FieldDescriptor]:
    """Return the fields that can be parsed in pieces, by number: messages and packed numbers."""
    return {
        field.number: field
        for field in descriptor.fields
        if (field.is_repeated and field.type not in _TEXTS and field.message_type is None)
        or (field.message_type is not None and not _is_entry(field))
    }


@cache
def _texts(descriptor: Descriptor) -> frozenset[int]:
    """Return the numbers of text fields, and of maps except those with the content of files."""
    return frozenset(
        field.number
        for field in descriptor.fields
        if field.type == FieldDescriptor.TYPE_STRING or (_is_entry(field) and not _has_files(field))
    )


def _is_entry(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _has_files(entry: FieldDescriptor) -> bool:
    value = entry.message_type.fields_by_name["value"].message_type
    return value is not None and any(
        field.type == FieldDescriptor.TYPE_BYTES for field in value.fields
    )


# -- requests and responses

#: The error of Triton's gRPC library for bytes that are not a message of the method's type.
UNREADABLE = "Unable to parse request"

#: The tag of a length-delimited field with a number below 16 is one byte.
_LENGTH_DELIMITED = 2
_ID = 3 << 3 | _LENGTH_DELIMITED
_RAW_INPUT_CONTENTS = 7 << 3 | _LENGTH_DELIMITED
_RAW_OUTPUT_CONTENTS = bytes([6 << 3 | _LENGTH_DELIMITED])
_INFER_RESPONSE = bytes([2 << 3 | _LENGTH_DELIMITED])

#: Fields before the first pause: interpreted, about a millisecond of work.
_FIRST_FIELDS = 1 << 11
#: At most this many raw tensors are read; no model has more inputs.
_MOST_RAW = 1 << 12

#: The pieces of a message in order; joining them is the only copy.
Parts = Sequence[Data]


class ReceivedRequest(NamedTuple):
    """A request: a message without its id and `raw_input_contents`, which are views in `raw`.

    Many requests may share the message, so it must not be changed. `head` is the bytes of the
    message if it is in the decoder's cache, else None.
    """

    message: ModelInferRequest
    request_id: str
    raw: list[memoryview]
    head: bytes | None = None


def split(data: Data) -> tuple[Data, str | None, list[memoryview]]:
    """Split a request into the remaining message, its id, and its `raw_input_contents`.

    With more than `_MOST_RAW` of these, the id stays in the message, and None is returned for it.
    Raises ServerError INTERNAL.
    """
    groups: list[int] = []
    found: list[Place] = []
    position, end = 0, len(data)
    most = _FIRST_FIELDS
    try:
        while position < end and len(found) < _MOST_RAW:
            start = position
            position = proto_fields.pass_fields(
                data, start, most, groups, found, _MOST_RAW - len(found)
            )
            if position == start:
                raise internal(UNREADABLE)
            if position < end:
                gil.back_off()  # no real request has this many fields
            most = proto_fields.FIELDS
        if groups:
            raise internal(UNREADABLE)
        if position < end:
            return _without_raw(data), None, _split_at(data, found)[2]
        return _split_at(data, found)
    except (UnicodeDecodeError, DecodeError):
        raise internal(UNREADABLE) from None


def _split_at(data: Data, found: list[Place]) -> tuple[Data, str, list[memoryview]]:
    """Split a request at the places of its id and its `raw_input_contents`."""
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
    """Return the message without its `raw_input_contents`. Raises DecodeError."""
    head = bytearray(len(data))
    groups: list[int] = []
    position = size = 0
    while position < len(data):
        start = position
        position, size = proto_fields.copy_without_raw(
            data, start, proto_fields.FIELDS, groups, head, size
        )
        if position == start:
            raise DecodeError("a truncated field")
        gil.back_off()
    if groups:
        raise DecodeError("a truncated group")
    return memoryview(head)[:size]


def is_large(data: Data) -> bool:
    """Return True if a codec thread must parse a request.

    That is so if the request is not short and, without its `raw_input_contents`, has very many
    fields or bytes, is malformed, or has unknown fields.
    """
    position, head, end = 0, 0, len(data)
    if not gil.is_long(message_bytes=end):
        return False
    try:
        for _ in range(gil.HEAD_FIELDS):
            if position >= end:
                return gil.is_long(head_bytes=head)
            start = position
            tag = data[position]
            if tag & 0b1000_0111 != _LENGTH_DELIMITED:
                return True
            _, _, position = proto_fields.read_field(data, start, [])
            if position < 0:
                return True
            if tag != _RAW_INPUT_CONTENTS:
                head += position - start
    except DecodeError:
        pass
    return True


def parse(head: Data) -> ModelInferRequest:
    """Parse a message. Raises ServerError INTERNAL if it is malformed."""
    message = ModelInferRequest()
    try:
        if gil.is_long(head_bytes=len(head)):
            merge(message, head)
        else:
            message.MergeFromString(bytes(head))
    except DecodeError:
        raise internal(UNREADABLE) from None
    return message


def response_parts(head: bytes, raw: Parts) -> Parts:
    """Append `raw` as `raw_output_contents` to `head`, a ModelInferResponse without them."""
    parts: list[Data] = [head]
    for content in raw:
        parts.append(_RAW_OUTPUT_CONTENTS + varint(len(content)))
        parts.append(content)
    return parts


def streamed(response: Parts) -> Parts:
    """Return a ModelStreamInferResponse that contains `response` and no error."""
    return [_INFER_RESPONSE + varint(sum(map(len, response))), *response]


_UINT64 = 2**64


def read_span(
    tensor: (ModelInferRequest.InferInputTensor | ModelInferRequest.InferRequestedOutputTensor),
) -> Span | None:
    """Return the part of shared memory that a tensor names, or None."""
    parameters = tensor.parameters
    region, offset = None, 0
    if "shared_memory_region" in parameters:
        region = _read_part(tensor.name, parameters, "region", "string_param")
    if "shared_memory_offset" in parameters:
        if region is None:
            raise _without_region("offset", tensor.name)
        offset = _read_part(tensor.name, parameters, "offset", "int64_param")
    if "shared_memory_byte_size" in parameters:
        if region is None:
            raise _without_region("byte_size", tensor.name)
        size = _read_part(tensor.name, parameters, "byte_size", "int64_param")
    elif region is None:
        return None
    else:
        raise invalid_arg(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
            f"parameter for tensor '{tensor.name}'"
        )
    return region, offset % _UINT64, size % _UINT64  # as unsigned numbers, like Triton


def _read_part(tensor: str, parameters: Mapping[str, InferParameter], part: str, kind: str) -> Any:  # noqa: ANN401 - depends on `kind`
    value = parameters[f"shared_memory_{part}"]
    if value.WhichOneof("parameter_choice") != kind:
        raise invalid_arg(
            f"invalid value type for 'shared_memory_{part}' parameter for tensor '{tensor}', "
            f"expected {kind}."
        )
    return getattr(value, kind)


def _without_region(part: str, tensor: str) -> ServerError:
    return invalid_arg(
        f"'shared_memory_{part}' can not be specified without 'shared_memory_region' parameter "
        f"for tensor '{tensor}'"
    )
