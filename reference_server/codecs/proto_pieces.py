"""Protobuf messages read in pieces, between which other threads have the interpreter.

Protobuf keeps the interpreter's lock while it reads, which takes up to 0.2 microseconds for each
byte that a stranger sends. What follows of a message may be merged into what was read before, so a
long one is cut between its fields; a long field is cut between those of its message, or between its
numbers. Pieces hold whole fields, so that what they say, and whether they say anything, remains
protobuf's to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from reference_server.codecs import proto_fields
from reference_server.codecs.proto_fields import Data
from reference_server.core import gil

#: Bytes that protobuf reads in one go: most take it less than a millisecond.
PIECE = 1 << 13
#: Bytes of a name or another text, or of a parameter that holds one: some 20 milliseconds' work.
LONGEST_TEXT = 1 << 24
_LENGTH_DELIMITED = 2


def varint(value: int) -> bytes:
    """A number on the wire."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def merge(message: Message, data: Data) -> None:
    """Read `data` into `message`. Raises DecodeError.

    One element of bytes, and a text, are read in one go; the text may not be longer than
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
    """How many bytes of `piece` are fields that are whole."""
    position, groups = 0, list[int]()
    while position < len(piece):
        start = position
        position = proto_fields.passed(piece, start, proto_fields.FIELDS, groups)
        if position == start:
            break
        if position < len(piece):
            gil.yield_gil()
    return groups[0] if groups else position


def _merge_long_field(message: Message, data: memoryview, start: int) -> int:
    """Read the field at `start`, which is longer than a piece; returns where it ends."""
    groups: list[int] = []
    tag, position, end = proto_fields.field(data, start, groups)
    while groups:  # which no message of ours has
        position = end
        end = proto_fields.after_groups(data, position, proto_fields.FIELDS, groups)
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
    """Read numbers that follow each other, of so many bytes each, or of any number."""
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
    """The fields, by their numbers, that can be read in parts: messages, and many numbers."""
    return {
        field.number: field
        for field in descriptor.fields
        if (field.is_repeated and field.type not in _TEXTS and field.message_type is None)
        or (field.message_type is not None and not _is_entry(field))
    }


@cache
def _texts(descriptor: Descriptor) -> frozenset[int]:
    """The numbers of the texts, and of the maps, but for those of files."""
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
