# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Prints doubles as decimal text with Grisu2, as RapidJSON implements it.

The digits always read back as the same double. For every third double of 17 digits, they differ
from the digits of `repr`: Grisu2 avoids the ends of the rounding interval, and RapidJSON's version
often leaves out the last step to the closest digits.

Cython compiles this file if there is a C compiler; `grisu.pxd` has the C types. So all numbers are
integers of 64 bits (products: 128 bits), and bytes are written one by one.
"""

from __future__ import annotations

import array

#: The longest text of a double: a sign, a zero, a point, five zeros, 17 digits, and a comma.
_LONGEST = 26


def power_of_ten(exponent: int) -> tuple[int, int]:
    """Return 10**exponent as a 64-bit significand, rounded to nearest, and a binary exponent."""
    if exponent < 0:
        divisor = 10**-exponent
        bits = divisor.bit_length() + 63
        return (1 + (2 << bits) // divisor) >> 1, -bits
    power = 10**exponent
    bits = power.bit_length()
    return (1 + (power << 65 >> bits)) >> 1, bits - 64


def write_doubles(numbers: bytes, size: int) -> bytes:
    """Return the comma-separated texts of numbers, printed as doubles.

    A text has at least one decimal, or an exponent, which is used from 1e21 on and below 1e-6.

    Args:
        numbers: At least one little-endian float.
        size: The size of a float in bytes: 4 or 8.
    """
    count = len(numbers) // size
    return _write_all(numbers, count, size == 8, bytearray(_LONGEST * count))


# When this file is compiled, all names below are C variables and functions. No integer literal may
# need more than 32 bits: Cython would make it a Python object.

#: Positions of the decimal point without an exponent: 0 in `0.5`, 1 in `5.0`.
_FIRST_POINT, _LAST_POINT = -5, 21
#: Every double has a text of this many digits.
_MOST_DIGITS = 17
#: After more fraction digits than this, RapidJSON does not look for closer digits.
_ROUNDED_PLACES = 8
_TOP_BIT = 1 << 63
_TENS = array.array("Q", [10**exponent for exponent in range(_MOST_DIGITS + 1)])
#: Powers of ten in steps of eight digits, from 1e-340 on: significands, binary exponents.
_POWERS = array.array("Q", [power_of_ten(each)[0] for each in range(-340, 333, 8)])
_BINARY_EXPONENTS = array.array("q", [power_of_ten(each)[1] for each in range(-340, 333, 8)])
_INFINITY, _NAN = b"Infinity", b"NaN"
#: The two digits of the numbers below 100.
_FIRST_DIGITS = b"".join(b"%d" % (number // 10) for number in range(100))
_SECOND_DIGITS = b"".join(b"%d" % (number % 10) for number in range(100))
_MINUS, _POINT, _ZERO, _COMMA, _E = b"-.0,e"


def _grisu(bits: int) -> tuple[int, int]:
    """Return the digits of a positive finite double and their decimal exponent.

    0.25 gives `(25, -2)`. Grisu2 scales the double and the ends of its rounding interval by a power
    of ten to 64-bit fixed-point numbers with `shift` fraction bits. The digits are the first digits
    of the upper end, cut at the first place where the remainder lies within the interval.
    """
    biased = bits >> 52
    significand = bits - (biased << 52) << 11
    # Half the distance to each neighbour; below a power of two the neighbour is twice as close.
    above = below = 1024
    if biased:
        if significand == 0:
            below = 512
        significand += _TOP_BIT
    else:
        biased = 1
        while significand < _TOP_BIT:
            significand <<= 1
            above <<= 1
            biased -= 1
        below = above

    # RapidJSON's own estimate of the power, in steps of eight decimal digits.
    step = (1025 - biased) * 315653 + (348 << 20) >> 23
    shift = 1022 - biased - _BINARY_EXPONENTS[step]
    exponent = 340 - 8 * step
    wide = _POWERS[step]
    half = _TOP_BIT
    upper = ((significand + above) * wide + half >> 64) - 1
    lower = ((significand - below) * wide + half >> 64) + 1
    width = upper - lower
    distance = upper - (significand * wide + half >> 64)

    unit = 1
    unit <<= shift
    digits = upper >> shift
    rest = upper - (digits << shift)
    if rest <= width:
        while digits >= 10:
            shorter = digits // 10
            more = rest + (digits - 10 * shorter) * unit
            if more > width:
                break
            digits = shorter
            rest = more
            unit *= 10
            exponent += 1
    else:
        # Most doubles need all digits.
        places = _MOST_DIGITS - 1
        while _TENS[_MOST_DIGITS - places] <= digits:
            places -= 1
        wide = rest
        while places > 1 and (wide * _TENS[places - 1] & unit - 1) < width * _TENS[places - 1]:
            places -= 1
        exponent -= places
        power = _TENS[places]
        wide *= power
        digits = digits * power + (wide >> shift)
        if places > _ROUNDED_PLACES:
            return digits, exponent
        rest = wide & unit - 1
        width *= power
        distance *= power
    while (
        rest < distance
        and unit <= width - rest
        and (rest + unit < distance or distance - rest > rest + unit - distance)
    ):
        digits -= 1
        rest += unit
    return digits, exponent


def _write_all(numbers: bytes, count: int, is_double: bool, out: bytearray) -> bytes:
    """Write `count` floats of 4 or 8 bytes."""
    position = 0
    place = 0
    for _ in range(count):
        bits = numbers[place + 3]
        bits = bits << 8 | numbers[place + 2]
        bits = bits << 8 | numbers[place + 1]
        bits = bits << 8 | numbers[place]
        place += 4
        if is_double:
            high = numbers[place + 3]
            high = high << 8 | numbers[place + 2]
            high = high << 8 | numbers[place + 1]
            high = high << 8 | numbers[place]
            place += 4
            bits |= high << 32
        else:
            bits = _widened(bits)
        position = _write(bits, out, position)
    return bytes(out[: position - 1])


def _widened(single: int) -> int:
    """Return the bits of a 32-bit float as a double.

    The bits are converted, since a conversion of the float reports an invalid operation for some
    NaNs.
    """
    bits = single >> 31 << 63
    biased = single >> 23 & 255
    fraction = single & 8388607
    if biased == 255:
        biased = 2047 - 896
    elif biased == 0:
        if fraction == 0:
            return bits
        biased = 1
        while fraction < 8388608:
            fraction <<= 1
            biased -= 1
        fraction -= 8388608
    biased += 896
    return bits + (biased << 52) + (fraction << 29)


def _write(bits: int, out: bytearray, position: int) -> int:
    is_negative = bits >= _TOP_BIT
    if is_negative:
        bits -= _TOP_BIT
        out[position] = _MINUS
        position += 1
    biased = bits >> 52
    if biased < 2047:
        position = _write_finite(bits, out, position)
    elif bits - (biased << 52) == 0:
        for place in range(8):
            out[position + place] = _INFINITY[place]
        position += 8
    else:
        position -= is_negative
        for place in range(3):
            out[position + place] = _NAN[place]
        position += 3
    out[position] = _COMMA
    return position + 1


def _write_finite(bits: int, out: bytearray, position: int) -> int:
    biased = bits >> 52
    digits = 0
    exponent = 0
    is_whole = bits == 0
    if 1023 <= biased <= 1075:  # from 1 up to 2**53, where whole doubles are exact
        shift = 1075 - biased
        digits = bits - (biased - 1 << 52)
        is_whole = digits >> shift << shift == digits
        digits >>= shift
    if not is_whole:
        digits, exponent = _grisu(bits)
    size = 1 if is_whole else _MOST_DIGITS  # most doubles have few digits, or all
    while digits >= _TENS[size]:
        size += 1
    while size > 1 and digits < _TENS[size - 1]:
        size -= 1
    point = size + exponent
    if point > _LAST_POINT or point < _FIRST_POINT:
        return _write_scientific(digits, size, point - 1, out, position)
    if point >= size:
        _write_digits(digits, size, out, position)
        for place in range(size, point):
            out[position + place] = _ZERO
        out[position + point] = _POINT
        out[position + point + 1] = _ZERO
        return position + point + 2
    if point > 0:
        # Move the digits before the point, to make room for it.
        _write_digits(digits, size, out, position + 1)
        for place in range(point):
            out[position + place] = out[position + place + 1]
        out[position + point] = _POINT
        return position + size + 1
    for place in range(2 - point):
        out[position + place] = _ZERO
    out[position + 1] = _POINT
    position += 2 - point
    _write_digits(digits, size, out, position)
    return position + size


def _write_scientific(digits: int, size: int, exponent: int, out: bytearray, position: int) -> int:
    _write_digits(digits, size, out, position + 1)
    out[position] = out[position + 1]
    position += 1
    if size > 1:
        out[position] = _POINT
        position += size
    out[position] = _E
    position += 1
    if exponent < 0:
        out[position] = _MINUS
        position += 1
        exponent = -exponent
    size = 1 + (exponent >= 10) + (exponent >= 100)
    _write_digits(exponent, size, out, position)
    return position + size


def _write_digits(digits: int, size: int, out: bytearray, position: int) -> None:
    place = position + size
    while place >= position + 2:
        place -= 2
        shorter = digits // 100
        pair = digits - 100 * shorter
        digits = shorter
        out[place] = _FIRST_DIGITS[pair]
        out[place + 1] = _SECOND_DIGITS[pair]
    if place > position:
        out[position] = _ZERO + digits
