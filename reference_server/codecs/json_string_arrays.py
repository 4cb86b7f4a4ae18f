# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Reads arrays of strings in JSON, and writes them from the wire form of BYTES.

Cython compiles this file where a C compiler is; `json_string_arrays.pxd` has the C types.
"""

from __future__ import annotations


def find_array_end(json: bytes, size: int, position: int) -> int:
    """Return the end of the array of strings that begins at `position`.

    Returns 0 if a string has an escape, or if the array contains anything but strings, arrays,
    commas and white space. The order of these is not checked.
    """
    depth = 0
    while position < size:
        byte = json[position]
        position += 1
        if byte == _QUOTE:
            while position < size and json[position] != _QUOTE:
                if json[position] == _BACKSLASH:
                    return 0
                position += 1
            position += 1
        elif byte == _OPEN:
            depth += 1
        elif byte == _CLOSE:
            depth -= 1
            if depth == 0:
                return position
        elif byte not in (_COMMA, _SPACE, _LINE, _TAB, _RETURN):
            return 0
    return 0


def read_strings(text: bytes, size: int, count: int) -> list[bytes] | None:
    """Read a JSON array of strings, which may contain arrays that are read depth first.

    Returns None if the array is malformed, has not `count` strings, or has a string with escapes.
    """
    found: list[bytes] = []
    position = depth = 0
    while position < size:
        byte = text[position]
        position += 1
        if byte in (_SPACE, _LINE, _TAB, _RETURN):
            continue
        if byte == _OPEN:
            depth += 1
            if depth > _DEEPEST:
                return None
            continue
        if byte != _QUOTE or depth == 0:
            return None
        start = position
        while position < size and _SPACE <= text[position] != _QUOTE:
            if text[position] == _BACKSLASH:
                return None
            position += 1
        if position == size or text[position] != _QUOTE:
            return None
        found.append(text[start:position])
        position += 1
        while position < size:
            byte = text[position]
            position += 1
            if byte == _COMMA:
                break
            if byte == _CLOSE:
                depth -= 1
                if depth == 0:
                    return found if position == size and len(found) == count else None
            elif byte not in (_SPACE, _LINE, _TAB, _RETURN):
                return None
    return None


def write_strings(wire: bytes | memoryview, count: int) -> bytes | None:
    """Return the strings of a wire form as comma-separated JSON strings, escaped as RapidJSON does.

    Returns None if `wire` is malformed, has not `count` strings, or needs very many escapes.
    """
    room = 2 * len(wire) + 8
    out = bytearray(room)
    end = _write(wire, len(wire), count, out, room - 8)
    return bytes(memoryview(out)[: end - 1]) if end else None


# Compiled, all names below are C variables and functions.

_DEEPEST = 8
_OPEN, _CLOSE, _COMMA, _QUOTE, _BACKSLASH, _U, _ZERO = b'[],"\\u0'
_SPACE, _TAB, _LINE, _RETURN = b" \t\n\r"
_DIGITS = b"0123456789ABCDEF"
#: The letter of the escape of a control character; 0 if its escape is hexadecimal.
_LETTERS = b"\0\0\0\0\0\0\0\0btn\0fr\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"


def _write(wire: bytes | memoryview, size: int, count: int, out: bytearray, room: int) -> int:
    """Write the strings, each with a comma behind it. Returns their end, 0 if it gives up."""
    position = 0
    end = 0
    while position < size:
        if size - position < 4:
            return 0
        length = wire[position + 3]
        length = length << 8 | wire[position + 2]
        length = length << 8 | wire[position + 1]
        length = length << 8 | wire[position]
        position += 4
        if length > size - position or count == 0:
            return 0
        count -= 1
        out[end] = _QUOTE
        end += 1
        length += position
        while position < length:
            byte = wire[position]
            position += 1
            if byte >= _SPACE and byte != _QUOTE and byte != _BACKSLASH:
                out[end] = byte
                end += 1
            else:
                if end + size - position > room - 6:
                    return 0
                out[end] = _BACKSLASH
                out[end + 1] = byte
                if byte < _SPACE:
                    out[end + 1] = _LETTERS[byte]
                    if _LETTERS[byte] == 0:
                        out[end + 1] = _U
                        out[end + 2] = _ZERO
                        out[end + 3] = _ZERO
                        out[end + 4] = _DIGITS[byte >> 4]
                        out[end + 5] = _DIGITS[byte & 15]
                        end += 4
                end += 2
        out[end] = _QUOTE
        out[end + 1] = _COMMA
        end += 2
    return end if count == 0 else 0
