# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Finds the bounds of the fields of a protobuf message, without decoding their content.

If a C compiler is installed, Cython compiles this file; `proto_fields.pxd` has the C types. A field
takes some nanoseconds in compiled code, and up to a microsecond in interpreted code.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

#: The number of fields that one call skips: about 50 microseconds of compiled code.
FIELDS = 1 << 13

#: A message, or a part of one.
Data = bytes | memoryview
#: The start of a field, the start of its content, and its end.
Place = tuple[int, int, int]


def pass_fields(
    data: Data,
    position: int,
    most: int,
    groups: list[int],
    found: list[Place] | None = None,
    room: int = 0,
) -> int:
    """Skip at most `most` fields of `data` from `position` on; return the end of the last one.

    A truncated field is not skipped.

    Args:
        data: The message.
        position: The start of the first field.
        most: The maximum number of fields to skip.
        groups: The open groups: the start of the outermost group, then the field numbers of all.
        found: Receives the places of the id and the `raw_input_contents` of a request.
        room: The number of places that `found` may receive. The function returns after the last.

    Raises:
        DecodeError: The data are not a protobuf message.
    """
    size = len(data)
    count = 0
    while position < size and count < most:
        tag = data[position]
        # The fast path: a field with a one-byte tag and a one-byte length.
        if tag & 0x87 == _LENGTH_DELIMITED and position + 1 < size and data[position + 1] < 0x80:
            content = position + 2
            end = content + data[position + 1]
            if end > size:
                break
        else:
            tag, content, end = read_field(data, position, groups)
            if end == _TRUNCATED:
                break
        if found is not None and tag in (_RAW, _ID) and not groups:
            found.append((position, content, end))
            room -= 1
            if not room:
                return end
        position = end
        count += 1
    return position


def pass_groups(data: Data, position: int, most: int, groups: list[int]) -> int:
    """Skip at most `most` fields up to the end of the outermost group; return their end."""
    count = 0
    size = len(data)
    while groups and position < size and count < most:
        _, _, end = read_field(data, position, groups)
        if end == _TRUNCATED:
            break
        position = end
        count += 1
    return position


def copy_without_raw(
    data: Data, position: int, most: int, groups: list[int], head: bytearray, size: int
) -> tuple[int, int]:
    """Skip fields like `pass_fields`, and append all but `raw_input_contents` to `head`.

    `size` is the size of the content of `head`. Returns the end of the fields and the new size.
    Raises DecodeError.
    """
    length = len(data)
    count = 0
    while position < length and count < most:
        tag = data[position]
        if tag & 0x87 == _LENGTH_DELIMITED and position + 1 < length and data[position + 1] < 0x80:
            end = position + 2 + data[position + 1]
            if end > length:
                break
        else:
            tag, _, end = read_field(data, position, groups)
            if end == _TRUNCATED:
                break
        if tag != _RAW or groups:
            size = _copy(data, position, end, head, size)
        position = end
        count += 1
    return position, size


def read_field(data: Data, position: int, groups: list[int]) -> tuple[int, int, int]:
    """Return the tag of the field at `position`, the start of its content, and its end.

    The end is negative if the field is truncated. The start and the end of a group are fields of
    their own. Raises DecodeError.
    """
    start = position
    size = len(data)
    tag, position = _number(data, position)
    if position == _TRUNCATED:
        return 0, 0, _TRUNCATED
    content = position
    kind = tag & 7
    if tag < 8:
        raise DecodeError("a field with the number 0")
    if kind == _LENGTH_DELIMITED:
        length, content = _number(data, position)
        if content == _TRUNCATED or length > size - content:
            return 0, 0, _TRUNCATED
        position = content + length
    elif kind == _VARINT:
        length, position = _number(data, position)
    elif kind == _FIXED64:
        position += 8
    elif kind == _FIXED32:
        position += 4
    elif kind == _GROUP:
        if not groups:
            groups.append(start)
        elif len(groups) > _DEEPEST:
            raise DecodeError("too many groups in groups")
        groups.append(tag >> 3)
    elif kind != _GROUP_END or not groups or groups.pop() != tag >> 3:
        raise DecodeError("a field of unknown type, or a group that was not started")
    elif len(groups) == 1:
        groups.pop()
    if position > size:
        return 0, 0, _TRUNCATED
    return tag, content, position


# When this file is compiled, all names below are C variables and functions.

_VARINT, _FIXED64, _LENGTH_DELIMITED, _GROUP, _GROUP_END, _FIXED32 = 0, 1, 2, 3, 4, 5
_ID, _RAW = 3 << 3 | 2, 7 << 3 | 2
_DEEPEST = 100  # nested groups, as in protobuf
_MOST_SHIFT = 63  # of the last byte of a varint of ten bytes
_TRUNCATED = -1
_SHORT = 64  # up to this many bytes are copied one by one


def _number(data: Data, position: int) -> tuple[int, int]:
    """Return the varint at `position` and its end: _TRUNCATED if truncated. Raises DecodeError."""
    size = len(data)
    number = 0
    shift = 0
    while position < size:
        byte = data[position]
        position += 1
        if shift == _MOST_SHIFT:
            if byte >= 0x80:
                raise DecodeError("a number of more than 10 bytes")
            byte &= 1  # protobuf drops bits beyond 64, too
        if byte < 0x80:
            return number | byte << shift, position
        number |= (byte & 0x7F) << shift
        shift += 7
    return 0, _TRUNCATED


def _copy(data: Data, start: int, end: int, to: bytearray, size: int) -> int:
    """Copy bytes to `to` from `size` on, and return their end."""
    if end - start > _SHORT:
        to[size : size + end - start] = data[start:end]
        return size + end - start
    for place in range(start, end):
        to[size] = data[place]
        size += 1
    return size
