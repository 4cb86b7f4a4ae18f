"""Parses protobuf messages in pieces, between which other threads can run.

Protobuf holds the GIL while it parses, up to 0.2 microseconds for each byte of a hostile message.
The rest of a message can be merged into its parsed part, so a long message is cut between its
fields; a long field is cut between the fields of its message, or between its numbers. Pieces
contain whole fields, so protobuf alone decides what they mean and whether they are valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from reference_server.codecs import proto_fields
from reference_server.codecs.proto_fields import Data
from reference_server.core import gil

#: Bytes that protobuf parses in one call: mostly less than a millisecond of work.
PIECE = 1 << 13
#: The longest text, or parameter with a text: some 20 milliseconds of work.
LONGEST_TEXT = 1 << 24
_LENGTH_DELIMITED = 2


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
        raise DecodeError("a field that is cut")
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
            raise DecodeError("a number without an end")
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
