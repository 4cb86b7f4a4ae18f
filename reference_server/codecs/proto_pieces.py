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

from reference_server.core import turns

#: Bytes that protobuf reads in one go: most take it less than a millisecond.
PIECE = 1 << 13
#: Bytes of a name or another text, or of a parameter that holds one: some 20 milliseconds' work.
LONGEST_TEXT = 1 << 24
#: Fields that are looked at in one go: about 50 microseconds' work. A thread that waits for the
#: interpreter is given it at once then, instead of after a millisecond.
FIELDS = 1 << 9
_VARINT, _FIXED64, _LENGTH_DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_DEEPEST = 100  # groups in groups, as protobuf itself
_LONGEST_VARINT = 10

#: A message, or a part of one.
Data = bytes | memoryview


def read_varint(data: Data, position: int) -> tuple[int, int]:
    """The number at `position` and where it ends. Raises IndexError if it does not end."""
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DecodeError("more bytes than a number of 64 bits has")


def varint(value: int) -> bytes:
    """The same on the wire."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def after_field(data: Data, position: int) -> int:
    """Where the field at `position` ends. Raises IndexError if it does not, and DecodeError."""
    groups: list[int] = []
    looked_at = 0
    while True:
        tag, position = read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise DecodeError("a field without a number")
        if kind == _VARINT:
            _, position = read_varint(data, position)
        elif kind == _LENGTH_DELIMITED:
            length, position = read_varint(data, position)
            position += length
        elif kind in _FIXED:
            position += _FIXED[kind]
        elif kind == _GROUP and len(groups) < _DEEPEST:
            groups.append(number)
        elif kind != _GROUP_END or not groups or groups.pop() != number:
            raise DecodeError("no field of any kind")
        if position > len(data):
            raise IndexError("a field that is cut")
        if not groups:
            return position
        looked_at += 1
        if not looked_at % FIELDS:
            turns.give_way()


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
            turns.give_way()
        else:
            position = _merge_long_field(message, view, position)
    message.MergeFromString(bytes(view[position:]))


def _whole_fields(piece: bytes) -> int:
    """How many bytes of `piece` are fields that are whole."""
    position, fields = 0, 0
    try:
        while True:
            start = position
            # Most are short and have a short number; the others are looked at with more care.
            kind = piece[position] & 0x87
            if kind == _LENGTH_DELIMITED and piece[position + 1] < 0x80:
                position += 2 + piece[position + 1]
            elif kind == _VARINT and piece[position + 1] < 0x80:
                position += 2
            else:
                position = after_field(piece, position)
            fields += 1
            if not fields % FIELDS:
                turns.give_way()
            if position > len(piece):
                return start
    except IndexError:
        return start


def _merge_long_field(message: Message, data: memoryview, start: int) -> int:
    """Read the field at `start`, which is longer than a piece; returns where it ends."""
    try:
        end = after_field(data, start)
        tag, position = read_varint(data, start)
        if tag & 7 != _LENGTH_DELIMITED:
            return end  # a group, which no message of ours has
        _, position = read_varint(data, position)
    except IndexError as error:
        raise DecodeError(str(error)) from None
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
        turns.give_way()


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
