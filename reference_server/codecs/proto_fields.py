# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Finds the bounds of the fields of a protobuf message, without decoding their content.

Cython compiles this file where a C compiler is; `proto_fields.pxd` has the C types. Compiled, a
field takes some nanoseconds; interpreted, up to a microsecond.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

#: Fields that one call walks over: compiled, about 50 microseconds of work.
FIELDS = 1 << 13

#: A message, or a part of one.
Data = bytes | memoryview
#: Where a field begins, where its content does, and where it ends.
Place = tuple[int, int, int]


def passed(
    data: Data,
    position: int,
    most: int,
    groups: list[int],
    found: list[Place] | None = None,
    room: int = 0,
) -> int:
    """Pass at most `most` fields of `data`, the first at `position`; where they end.

    A field that is cut is not passed. `groups` are those that are open: where the outermost begins,
    and their numbers. `found` gets the id and the `raw_input_contents` of a request; nothing is
    passed behind the last that it has `room` for. Raises DecodeError.
    """
    size = len(data)
    count = 0
    while position < size and count < most:
        tag = data[position]
        # Most have a short number and are short themselves; all others are looked at with care.
        if tag & 0x87 == _LENGTH_DELIMITED and position + 1 < size and data[position + 1] < 0x80:
            content = position + 2
            end = content + data[position + 1]
            if end > size:
                break
        else:
            tag, content, end = field(data, position, groups)
            if end == _CUT:
                break
        if found is not None and tag in (_RAW, _ID) and not groups:
            found.append((position, content, end))
            room -= 1
            if not room:
                return end
        position = end
        count += 1
    return position


def after_groups(data: Data, position: int, most: int, groups: list[int]) -> int:
    """Pass at most `most` fields, and none behind the outermost group; where they end."""
    count = 0
    size = len(data)
    while groups and position < size and count < most:
        _, _, end = field(data, position, groups)
        if end == _CUT:
            break
        position = end
        count += 1
    return position


def without_raw(
    data: Data, position: int, most: int, groups: list[int], head: bytearray, size: int
) -> tuple[int, int]:
    """Pass fields as `passed` does, and copy all but `raw_input_contents` behind `size` of `head`.

    Where the fields end, and those in `head`. Raises DecodeError.
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
            tag, _, end = field(data, position, groups)
            if end == _CUT:
                break
        if tag != _RAW or groups:
            size = _copy(data, position, end, head, size)
        position = end
        count += 1
    return position, size


def field(data: Data, position: int, groups: list[int]) -> tuple[int, int, int]:
    """The tag of the field at `position`, where its content is, and where it ends.

    The end is below 0 if it is cut. What begins or ends a group is a field of its own. Raises
    DecodeError.
    """
    start = position
    size = len(data)
    tag, position = _number(data, position)
    if position == _CUT:
        return 0, 0, _CUT
    content = position
    kind = tag & 7
    if tag < 8:
        raise DecodeError("a field without a number")
    if kind == _LENGTH_DELIMITED:
        length, content = _number(data, position)
        if content == _CUT or length > size - content:
            return 0, 0, _CUT
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
        raise DecodeError("no field of any kind")
    elif len(groups) == 1:
        groups.pop()
    if position > size:
        return 0, 0, _CUT
    return tag, content, position


# What follows has types of C, and names that Python does not see there.

_VARINT, _FIXED64, _LENGTH_DELIMITED, _GROUP, _GROUP_END, _FIXED32 = 0, 1, 2, 3, 4, 5
_ID, _RAW = 3 << 3 | 2, 7 << 3 | 2
_DEEPEST = 100  # groups in groups, as protobuf itself
_MOST_SHIFT = 63  # in a number of ten bytes
_CUT = -1
_SHORT = 64  # bytes that are copied one by one


def _number(data: Data, position: int) -> tuple[int, int]:
    """The number at `position` and where it ends: _CUT if it does not. Raises DecodeError."""
    size = len(data)
    number = 0
    shift = 0
    while position < size:
        byte = data[position]
        position += 1
        if shift == _MOST_SHIFT:
            if byte >= 0x80:
                raise DecodeError("more bytes than a number of 64 bits has")
            byte &= 1  # what is beyond 64 bits is lost in protobuf, too
        if byte < 0x80:
            return number | byte << shift, position
        number |= (byte & 0x7F) << shift
        shift += 7
    return 0, _CUT


def _copy(data: Data, start: int, end: int, to: bytearray, size: int) -> int:
    """Copy these bytes behind `size`, and tell where they end."""
    if end - start > _SHORT:
        to[size : size + end - start] = data[start:end]
        return size + end - start
    for place in range(start, end):
        to[size] = data[place]
        size += 1
    return size
