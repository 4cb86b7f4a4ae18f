# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Splits the JSON of a request into a constant part and variable parts: its id and `data` arrays.

Cython compiles this file if there is a C compiler; `json_skeleton.pxd` has the C types.
"""

from __future__ import annotations

from reference_server.codecs import json_arrays

#: Replaces each variable part. No valid JSON contains it.
GAP = b"\0"


class Skeleton:
    """The parts of the JSON of one request.

    `text` is the JSON in which a gap replaces the id and each of the `arrays`. Without an id,
    or if the id stays in `text`, `request_id` stays None.
    """

    def __init__(self, text: bytes, request_id: bytes | None, arrays: list[bytes]) -> None:
        self.text = text
        self.request_id = request_id
        self.arrays = arrays


def split_request(json: bytes) -> Skeleton:
    """Split the JSON text of a request. The text is not checked and may be malformed."""
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


# When this file is compiled, all names below are C variables and functions.

_DATA, _ID = b'"data":', b'"id":'
_OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT, _COMMA, _QUOTE, _BACKSLASH = b'[]{},"\\'
_SPACE, _TILDE, _TAB, _LINE, _RETURN = b" ~\t\n\r"


def _id(json: bytes, size: int) -> tuple[int, int]:
    """Return the start and end of the id; both are -1 without an id.

    An id with escapes, control characters or non-ASCII characters is ignored.
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
    """Return the start of the value whose colon ends at `position`."""
    return position + 1 if position < size and json[position] == _SPACE else position


def _array_end(json: bytes, size: int, start: int) -> int:
    """Return the end of the array that begins at `start`, or 0 if this short search fails."""
    if start == size or json[start] != _OPEN:
        return 0
    first = start
    while first < size and json[first] in (_OPEN, _SPACE, _LINE, _TAB, _RETURN):
        first += 1
    if first < size and json[first] == _QUOTE:
        return json_arrays.find_array_end(json, size, start)
    # An array of numbers ends before the next quotation mark, or before the end of the text. Search
    # backwards from there for its closing bracket, and skip brackets of outer objects.
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
