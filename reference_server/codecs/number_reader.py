# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""An array of numbers in JSON as doubles, each the double nearest to its text.

Written for Cython as `grisu` is: `number_reader.pxd` has the types. As Python it is slow; orjson
reads the array then.
"""

from __future__ import annotations

import array

import numpy as np
import numpy.typing as npt

from reference_server.codecs.grisu import power_of_ten

IS_COMPILED = not __file__.endswith(".py")

#: Powers of ten that are doubles, and more of them in 64 bits.
_MOST_EXACT, _MOST = 22, 65


def doubles(text: bytes, count: int, largest: float) -> npt.NDArray[np.float64] | None:
    """The `count` numbers of the array `text`, which may have arrays in it, depth first.

    None for all that is not as simple as that, be it a fault or not, and where a number is beyond
    the `largest`.
    """
    if count > len(text) or not text.endswith(b"]"):
        return None
    numbers = np.empty(count)
    return numbers if _read(text, len(text), numbers, largest) == count else None


# What follows has types of C, and names that Python does not see there.

_DEEPEST = 8
_EXACT_TENS = array.array("d", [10**exponent for exponent in range(_MOST_EXACT + 1)])
#: From 10**-_MOST on: significands, binary exponents.
_POWERS = array.array("Q", [power_of_ten(each)[0] for each in range(-_MOST, _MOST + 1)])
_BINARY_EXPONENTS = array.array("q", [power_of_ten(each)[1] for each in range(-_MOST, _MOST + 1)])
_MOST_TWOS = 300
_TWOS = array.array("d", [2.0**exponent for exponent in range(-_MOST_TWOS, _MOST_TWOS)])
_OPEN, _CLOSE, _COMMA, _MINUS, _PLUS, _POINT, _ZERO, _E, _SMALL_E = b"[],-+.0Ee"
_SPACE, _TAB, _LINE, _RETURN = b" \t\n\r"
_TOP_BIT = 1 << 63
_EXACT_INTEGERS = 1 << 53
#: Digits of which any number fits 64 bits.
_MOST_DIGITS = 19


def _read(text: bytes, size: int, numbers: npt.NDArray[np.float64], largest: float) -> int:
    """How many numbers there are; 0 where not all is simple.

    The last byte is a bracket, where all scans stop.
    """
    position = 0
    depth = 0
    count = 0
    while True:
        byte = text[position]
        if byte in (_SPACE, _LINE, _TAB, _RETURN):
            position += 1
            continue
        if byte == _OPEN:
            depth += 1
            if depth > _DEEPEST:
                return 0
            position += 1
            continue
        if depth == 0 or count == len(numbers):
            return 0
        end, number = _read_number(text, position)
        if end == 0:
            return 0
        if end < 0:
            end = -end
            number = float(text[position:end])
        if number > largest or number < -largest:
            return 0
        numbers[count] = number
        position = end
        count += 1
        while True:
            byte = text[position]
            position += 1
            if byte == _COMMA:
                break
            if byte == _CLOSE:
                depth -= 1
                if depth == 0:
                    return count if position == size else 0
                if position == size:
                    return 0
            elif byte not in (_SPACE, _LINE, _TAB, _RETURN):
                return 0


def _read_number(text: bytes, position: int) -> tuple[int, float]:
    """Where the number at `position` ends, and the number.

    The end is 0 where no number is, and negative where its value is hard to tell.
    """
    is_negative = text[position] == _MINUS
    position += is_negative
    first = position
    digits = 0
    digit = text[position] - _ZERO
    while 0 <= digit <= 9:
        digits = 10 * digits + digit  # which may not fit; then its size is too large
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
    """The double nearest to `digits * 10**exponent`; 0 where that is hard to tell."""
    binary_exponent = _BINARY_EXPONENTS[exponent + _MOST]
    while digits < _TOP_BIT:
        digits <<= 1
        binary_exponent -= 1
    # With a power of 64 bits, this is less than one too small or too large.
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
    # Both are exact: 53 bits, and a power of two far within what doubles have.
    number = significand + (rest > half)
    return number * _TWOS[binary_exponent + 64 + shift + _MOST_TWOS]
