# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Reads arrays of numbers, booleans or strings in JSON, and writes strings, without Python objects.

Cython compiles this file if there is a C compiler; `json_arrays.pxd` has the C types.
"""

from __future__ import annotations

import array
import sys

from reference_server.codecs.grisu import power_of_ten

#: The largest exponent of ten that is exact as a double, and the largest in `_POWERS`.
_MOST_EXACT, _MOST = 22, 65


def read_numbers(text: bytes, count: int, kind: str, size: int) -> bytearray | None:
    """Convert a JSON array of numbers or booleans to the little-endian bytes of its elements.

    Args:
        text: The array. It may contain arrays, which are read depth first.
        count: The expected number of elements.
        kind: The kind of the NumPy dtype: `b`, `i`, `u` or `f`.
        size: The size of an element in bytes.

    Returns:
        The elements. A float is the double nearest to its text, rounded to `size`. None if the
        array is malformed, has another number of elements, an element that does not fit, or a form
        that this function does not read, such as NaN.
    """
    if count > len(text) or not text.endswith(b"]"):
        return None
    out = bytearray(count * size)
    return out if _read(text, len(text), count, ord(kind), size, out) else None


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

    Returns None if the array is malformed, does not have `count` strings, or has escapes.
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

    Returns None if `wire` is malformed, does not have `count` strings, or needs many escapes.
    """
    room = 2 * len(wire) + 8
    out = bytearray(room)
    end = _write(wire, len(wire), count, out, room - 8)
    return bytes(memoryview(out)[: end - 1]) if end else None


# When this file is compiled, all names below are C variables and functions.

_DEEPEST = 8
_EXACT_TENS = array.array("d", [10**exponent for exponent in range(_MOST_EXACT + 1)])
#: Powers of ten from 10**-_MOST on: their significands and binary exponents.
_POWERS = array.array("Q", [power_of_ten(each)[0] for each in range(-_MOST, _MOST + 1)])
_BINARY_EXPONENTS = array.array("q", [power_of_ten(each)[1] for each in range(-_MOST, _MOST + 1)])
_MOST_TWOS = 300
_TWOS = array.array("d", [2.0**exponent for exponent in range(-_MOST_TWOS, _MOST_TWOS)])
_OPEN, _CLOSE, _COMMA, _MINUS, _PLUS, _POINT, _ZERO, _E, _SMALL_E = b"[],-+.0Ee"
_SPACE, _TAB, _LINE, _RETURN = b" \t\n\r"
_TOP_BIT = 1 << 63
_EXACT_INTEGERS = 1 << 53
#: Any integer of this many digits fits 64 bits.
_MOST_DIGITS = 19
_BOOLEAN, _UNSIGNED, _FLOAT = b"buf"
_TRUE, _FALSE = b"true", b"false"
#: Buffers that turn a float into its bytes.
_SINGLE, _DOUBLE = array.array("f", [0]), array.array("d", [0])
_SINGLE_BYTES, _DOUBLE_BYTES = memoryview(_SINGLE).cast("B"), memoryview(_DOUBLE).cast("B")
_LARGEST_SINGLE, _LARGEST_DOUBLE = (2 - 2.0**-23) * 2.0**127, sys.float_info.max


def _read(text: bytes, size: int, count: int, kind: int, item: int, out: bytearray) -> bool:
    """Write the elements to `out`. Returns False where `read_numbers` returns None.

    The text ends with a bracket, where all scans stop.
    """
    position = 0
    depth = 0
    place = 0
    while True:
        byte = text[position]
        if byte in (_SPACE, _LINE, _TAB, _RETURN):
            position += 1
            continue
        if byte == _OPEN:
            depth += 1
            if depth > _DEEPEST:
                return False
            position += 1
            continue
        if depth == 0 or count == 0:
            return False
        if kind == _FLOAT:
            end, number = _read_number(text, position)
            if end < 0:
                end = -end
                number = float(text[position:end])
            if item == 4:
                if number > _LARGEST_SINGLE or number < -_LARGEST_SINGLE:
                    return False
                bits = _single_bits(number)
            else:
                if number > _LARGEST_DOUBLE or number < -_LARGEST_DOUBLE:
                    return False
                bits = _double_bits(number)
        elif kind == _BOOLEAN:
            end, bits = _read_boolean(text, size, position)
        else:
            end, bits = _read_integer(text, position, kind == _UNSIGNED, 8 * item)
        if end == 0:
            return False
        position = end
        count -= 1
        if item >= 4:
            _put_four(bits, out, place)
            if item == 8:
                _put_four(bits >> 32, out, place + 4)
        else:
            out[place] = bits & 255
            if item == 2:
                out[place + 1] = bits >> 8 & 255
        place += item
        while True:
            byte = text[position]
            position += 1
            if byte == _COMMA:
                break
            if byte == _CLOSE:
                depth -= 1
                if depth == 0:
                    return count == 0 and position == size
                if position == size:
                    return False
            elif byte not in (_SPACE, _LINE, _TAB, _RETURN):
                return False


def _put_four(bits: int, out: bytearray, place: int) -> None:
    out[place] = bits & 255
    out[place + 1] = bits >> 8 & 255
    out[place + 2] = bits >> 16 & 255
    out[place + 3] = bits >> 24 & 255


def _single_bits(number: float) -> int:
    _SINGLE[0] = number
    return _four(_SINGLE_BYTES, 0)


def _double_bits(number: float) -> int:
    _DOUBLE[0] = number
    return _four(_DOUBLE_BYTES, 4) << 32 | _four(_DOUBLE_BYTES, 0)


def _four(number: memoryview, place: int) -> int:
    bits = number[place + 3]
    bits = bits << 8 | number[place + 2]
    bits = bits << 8 | number[place + 1]
    return bits << 8 | number[place]


def _read_boolean(text: bytes, size: int, position: int) -> tuple[int, int]:
    """Return the end of the boolean at `position`, or 0, and its bits."""
    word = _TRUE if text[position] == _TRUE[0] else _FALSE
    if len(word) > size - position:
        return 0, 0
    for place in range(len(word)):
        if text[position + place] != word[place]:
            return 0, 0
    return position + len(word), len(word) == len(_TRUE)


def _read_integer(text: bytes, position: int, is_unsigned: bool, bits: int) -> tuple[int, int]:
    """Return the end of the integer at `position`, or 0 if it does not fit, and its bits."""
    is_negative = text[position] == _MINUS
    if is_negative and is_unsigned:
        return 0, 0
    position += is_negative
    first = position
    digits = 0
    digit = text[position] - _ZERO
    while 0 <= digit <= 9:
        digits = 10 * digits + digit
        position += 1
        digit = text[position] - _ZERO
    size = position - first
    if size == 0 or (size > 1 and text[first] == _ZERO):
        return 0, 0
    if size > _MOST_DIGITS and (
        # Twenty digits that begin with 1 and do not fit 64 bits wrap to a small number.
        size > _MOST_DIGITS + 1 or text[first] != _ZERO + 1 or digits < _TOP_BIT
    ):
        return 0, 0
    largest = _TOP_BIT - 1 + _TOP_BIT if is_unsigned else _TOP_BIT - 1
    largest = (largest >> 64 - bits) + is_negative
    if digits > largest:
        return 0, 0
    return position, -digits if is_negative else digits


def _read_number(text: bytes, position: int) -> tuple[int, float]:
    """Return the end of the number at `position`, and its value.

    The end is 0 if there is no number, and negative if the nearest double is not certain.
    """
    is_negative = text[position] == _MINUS
    position += is_negative
    first = position
    digits = 0
    digit = text[position] - _ZERO
    while 0 <= digit <= 9:
        digits = 10 * digits + digit  # may wrap; then there are too many digits
        position += 1
        digit = text[position] - _ZERO
    size = position - first
    if size == 0 or (size > 1 and text[first] == _ZERO):
        return 0, 0.0
    is_integer = True
    exponent = 0
    if text[position] == _POINT:
        is_integer = False
        position += 1
        first = position
        digit = text[position] - _ZERO
        while 0 <= digit <= 9:
            digits = 10 * digits + digit
            position += 1
            digit = text[position] - _ZERO
        if position == first:
            return 0, 0.0
        exponent = first - position
        size += position - first
    if text[position] == _E or text[position] == _SMALL_E:
        is_integer = False
        position += 1
        has_minus = text[position] == _MINUS
        if has_minus or text[position] == _PLUS:
            position += 1
        first = position
        power = 0
        digit = text[position] - _ZERO
        while 0 <= digit <= 9:
            power = 10 * power + digit
            position += 1
            digit = text[position] - _ZERO
        if position == first:
            return 0, 0.0
        if position - first > 4:
            size = _MOST_DIGITS + 1
        exponent += -power if has_minus else power
    if size > _MOST_DIGITS or exponent > _MOST or exponent < -_MOST:
        return -position, 0.0
    number = 0.0
    if digits <= _EXACT_INTEGERS and -_MOST_EXACT <= exponent <= _MOST_EXACT:
        number = digits
        if exponent < 0:
            number /= _EXACT_TENS[-exponent]
        else:
            number *= _EXACT_TENS[exponent]
    elif digits:
        number = _nearest(digits, exponent)
        if number == 0:
            return -position, 0.0
    if is_negative and not (is_integer and digits == 0):
        number = -number
    return position, number


def _nearest(digits: int, exponent: int) -> float:
    """Return the double nearest to `digits * 10**exponent`; 0 if it is not certain."""
    binary_exponent = _BINARY_EXPONENTS[exponent + _MOST]
    while digits < _TOP_BIT:
        digits <<= 1
        binary_exponent -= 1
    # The power is rounded to 64 bits, so the product is off by less than one.
    wide = digits
    product = wide * _POWERS[exponent + _MOST] >> 64
    shift = 11
    if product < _TOP_BIT:
        shift = 10
    half = 1 << shift - 1
    significand = product >> shift
    rest = product - (significand << shift)
    if rest == half or rest + 1 == half:
        return 0
    # Both factors are exact: 53 bits, and a power of two within the range of doubles.
    number = significand + (rest > half)
    return number * _TWOS[binary_exponent + 64 + shift + _MOST_TWOS]


# -- strings

_QUOTE, _BACKSLASH, _U = b'"\\u'
_DIGITS = b"0123456789ABCDEF"
#: The letter of the escape of a control character; 0 if its escape is hexadecimal.
_LETTERS = b"\0\0\0\0\0\0\0\0btn\0fr\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"


def _write(wire: bytes | memoryview, size: int, count: int, out: bytearray, room: int) -> int:
    """Write the strings, each with a comma after it. Returns the end of the text, or 0."""
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
