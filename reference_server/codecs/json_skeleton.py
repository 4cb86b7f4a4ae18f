# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""The JSON of a request taken apart: its arrays of elements, its id, and what is around these.

Written for Cython as `grisu` is: `json_skeleton.pxd` has the types.
"""

from __future__ import annotations

from reference_server.codecs import json_strings

IS_COMPILED = not __file__.endswith(".py")

#: What stands for a part that was taken out. No JSON has it.
GAP = b"\0"


class Skeleton:
    """`text` is the JSON with gaps for `request_id` and `arrays`.

    An id that is None is not there, or is left where it is.
    """

    def __init__(self, text: bytes, request_id: bytes | None, arrays: list[bytes]) -> None:
        self.text = text
        self.request_id = request_id
        self.arrays = arrays


def skeleton(json: bytes) -> Skeleton:
    """Take the JSON text apart, as far as bytes can tell: that it is right is not known yet."""
    size = len(json)
    id_start, id_end = _id(json, size)
    request_id = None
    text: list[bytes] = []
    arrays: list[bytes] = []
    position = 0
    found = json.find(_DATA)
    while found >= 0:
        start = _value(json, size, found + len(_DATA))
        end = _array_end(json, size, start)
        if end == 0:
            break
        if position <= id_start < start:
            request_id = json[id_start:id_end]
            text.append(json[position:id_start])
            position = id_end
        text.append(json[position:start])
        arrays.append(json[start:end])
        position = end
        found = json.find(_DATA, end)
    if request_id is None and position <= id_start:
        request_id = json[id_start:id_end]
        text.append(json[position:id_start])
        position = id_end
    text.append(json[position:])
    return Skeleton(GAP.join(text), request_id, arrays)


# What follows has types of C, and names that Python does not see there.

_DATA, _ID = b'"data":', b'"id":'
_OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT, _COMMA, _QUOTE, _BACKSLASH = b'[]{},"\\'
_SPACE, _TILDE, _TAB, _LINE, _RETURN = b" ~\t\n\r"


def _id(json: bytes, size: int) -> tuple[int, int]:
    """Where the id begins and ends, if it is what it says; -1 if not.

    That is without escapes, control characters, or other letters than ASCII's.
    """
    found = json.find(_ID)
    if found < 0:
        return -1, -1
    start = _value(json, size, found + len(_ID))
    if start == size or json[start] != _QUOTE:
        return -1, -1
    start += 1
    end = start
    while end < size and _SPACE <= json[end] <= _TILDE and json[end] not in (_QUOTE, _BACKSLASH):
        end += 1
    if end == size or json[end] != _QUOTE:
        return -1, -1
    return start, end


def _value(json: bytes, size: int, position: int) -> int:
    """Where the value begins whose colon ends at `position`."""
    return position + 1 if position < size and json[position] == _SPACE else position


def _array_end(json: bytes, size: int, start: int) -> int:
    """Where the array ends that begins at `start`; 0 if none does, or that is not easily told."""
    if start == size or json[start] != _OPEN:
        return 0
    first = start
    while first < size and json[first] in (_OPEN, _SPACE, _LINE, _TAB, _RETURN):
        first += 1
    if first < size and json[first] == _QUOTE:
        return json_strings.array_end(json, size, start) if json_strings.IS_COMPILED else 0
    # Numbers up to the next name, or to the end of the input, and brackets behind them.
    position = json.find(b'"', first)
    if position < 0:
        position = size
    end = 0
    while position > first:
        byte = json[position - 1]
        if byte == _CLOSE:
            end = position if end == 0 else end
        elif byte == _CLOSE_OBJECT:
            end = 0
        elif byte not in (_COMMA, _OPEN_OBJECT, _SPACE, _LINE, _TAB, _RETURN):
            break
        position -= 1
    return end
