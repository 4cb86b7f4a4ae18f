"""Doubles as decimal text: Grisu2 as RapidJSON has it, for one double and for many at once.

Its digits always read back as the same double, but for every third double of 17 digits they are
not those of `repr`: Grisu2 keeps clear of the ends of the rounding interval, and RapidJSON's
version often leaves out the last step, to the closest digits. One double is computed in Python's
integers, many in NumPy's.
"""

from __future__ import annotations

import bisect
import functools
import math

import numpy as np
import numpy.typing as npt
import orjson

Doubles = npt.NDArray[np.float64]
_Words = npt.NDArray[np.uint64]
_Indexes = npt.NDArray[np.intp]
_Digits = npt.NDArray[np.uint8]

#: Decimal points that print as such (0 in `0.5`, 1 in `5.0`); beyond them an exponent does.
_FIRST_POINT, _LAST_POINT = -5, 21
#: Enough for every double.
_MOST_DIGITS = 17
#: After more fraction digits than this, RapidJSON does not look for closer ones.
_ROUNDED_PLACES = 8
#: Below this, a whole double is an exact integer, whose digits no printer disputes.
_EXACT_INTEGERS = 2**53
_SMALLEST_NORMAL = 2.0**-1022

_TENS = [10**exponent for exponent in range(_MOST_DIGITS)]
_POWERS = np.array(_TENS, np.uint64)
_TWO_64 = 2.0**64
_ONE = np.uint64(1)
_LOW_HALF = np.uint64(2**32 - 1)
_HIDDEN_BIT = np.uint64(2**52)


def are_exact(largest: float) -> bool:
    """Whether all whole doubles up to `largest` are printed alike by everybody."""
    return largest < _EXACT_INTEGERS


def text(value: float) -> str:
    """`value` as RapidJSON prints it: at least one decimal, exponents from 1e21 and below 1e-6."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value.is_integer() and abs(value) < _EXACT_INTEGERS:
        return repr(value)
    sign = "-" if value < 0 else ""
    significand, exponent = _grisu(abs(value))
    digits = str(significand)
    point = len(digits) + exponent
    if not _FIRST_POINT <= point <= _LAST_POINT:
        return f"{sign}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point]:0<{point}}.{digits[point:] or '0'}"


def _grisu(value: float) -> tuple[int, int]:
    """The digits of a positive double and their decimal exponent: `0.25` gives `(25, -2)`.

    Grisu2 scales the double and the ends of its rounding interval by a power of ten, so that they
    become 64-bit fixed-point numbers with `shift` fraction bits. The digits are those of the upper
    end, cut at the first place where the rest lies within the interval.
    """
    mantissa, binary_exponent = math.frexp(value)
    power, shift, exponent = _scale(binary_exponent)
    significand = int(mantissa * _TWO_64)
    # Half way to the neighbours; the one below a power of two is twice as close.
    above = 1024 << max(0, -1021 - binary_exponent)
    below = above >> 1 if mantissa == 0.5 and binary_exponent >= -1021 else above

    half = 1 << 63
    upper = ((significand + above) * power + half >> 64) - 1
    lower = ((significand - below) * power + half >> 64) + 1
    width = upper - lower
    distance = upper - (significand * power + half >> 64)
    unit = 1 << shift
    if upper % unit <= width:
        while upper % (unit * 10) <= width:
            unit *= 10
            exponent += 1
    else:
        # Most doubles need all the digits that they may have.
        places = _MOST_DIGITS - len(str(upper >> shift))
        power = _TENS[places - 1]
        if upper * power % unit < width * power:
            places = 1 + bisect.bisect_left(
                range(1, places - 1),
                True,
                key=lambda places: upper * _TENS[places] % unit < width * _TENS[places],
            )
        exponent -= places
        power = _TENS[places]
        upper *= power
        width *= power
        # After more places RapidJSON does not look for closer digits.
        distance = distance * power if places <= _ROUNDED_PLACES else 0

    digits, rest = divmod(upper, unit)
    while (
        rest < distance
        and unit <= width - rest
        and (rest + unit < distance or distance - rest > rest + unit - distance)
    ):
        digits -= 1
        rest += unit
    return digits, exponent


@functools.cache
def _scale(binary_exponent: int) -> tuple[int, int, int]:
    """What brings doubles of 2**(binary_exponent - 1) and more to fixed point.

    Gives the 64-bit significand of a power of ten, the fraction bits of the product, and the
    exponent that takes the power back.
    """
    # RapidJSON's own estimate of the power, in steps of eight decimal digits.
    estimate = math.ceil((3 - binary_exponent) * 0.30102999566398114 + 347)
    exponent = 340 - 8 * (estimate >> 3)
    power, power_exponent = _power_of_ten(-exponent)
    return power, -(binary_exponent + power_exponent), exponent


@functools.cache
def _power_of_ten(exponent: int) -> tuple[int, int]:
    """10**exponent as a 64-bit significand, rounded to nearest, and a binary exponent."""
    if exponent < 0:
        divisor = 10**-exponent
        bits = divisor.bit_length() + 63
        return (1 + (2 << bits) // divisor) >> 1, -bits
    power = 10**exponent
    bits = power.bit_length()
    return (1 + (power << 65 >> bits)) >> 1, bits - 64


def texts(values: Doubles) -> bytes:
    """One round of doubles as `text` prints them, joined by commas."""
    magnitudes = np.abs(values)
    if np.array_equal(values, np.rint(values)) and magnitudes.max() < _EXACT_INTEGERS:
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    regular = (magnitudes >= _SMALLEST_NORMAL) & (magnitudes < np.inf)
    significands, lengths, points = _grisu_many(np.where(regular, magnitudes, 1.0))
    # A zero has the layout of the one that took its place.
    significands[magnitudes == 0.0] = 0
    odd = np.flatnonzero(~regular & (magnitudes != 0.0))
    columns = _lay_out(significands, lengths, points, widest=bool(odd.size))
    columns[0] = np.signbit(values) * ord("-")
    for index in odd:
        shown = text(float(values[index])).encode()
        columns[:-1, index] = np.frombuffer(shown.ljust(len(columns) - 1, b"\0"), np.uint8)
    # Column by column, which is much faster than one transposed copy.
    rows = np.empty(columns.shape[::-1], np.uint8)
    for number, column in enumerate(columns):
        rows[:, number] = column
    return rows.tobytes().translate(None, b"\0")[:-1]


def _grisu_many(values: Doubles) -> tuple[_Words, _Indexes, _Indexes]:
    """`_grisu` of normal positive doubles: significands, their lengths, their decimal points."""
    powers, shifts, exponents, sizes = _scales()
    bits = values.view(np.uint64)
    binary_exponent = (bits >> 52).astype(np.intp)
    power, shift = powers[binary_exponent], shifts[binary_exponent]
    mantissa = bits & (_HIDDEN_BIT - _ONE)

    # The three products of `_grisu`: the ends follow from the double's own by 128-bit sums.
    high, low = _product((mantissa | _HIDDEN_BIT) << np.uint64(11), power)
    low_above = low + (power << 10)
    upper = high + (power >> 54) + (low_above < low) + (low_above >> 63) - 1
    gap = 10 - (mantissa == 0).astype(np.uint64)
    low_below = low - (power << gap)
    lower = high - (power >> (64 - gap)) - (low_below > low) + (low_below >> 63) + 1
    width = upper - lower
    distance = upper - high - (low >> 63)

    unit = _ONE << shift
    whole, fraction = upper >> shift, upper & (unit - 1)
    size = sizes[binary_exponent]
    size += whole >= _POWERS[size]
    places = _decimal_places(fraction, width, unit, _MOST_DIGITS - size)
    scale = _POWERS[places]
    high, low = _product(fraction, scale)
    significand = whole * scale + ((high << (64 - shift)) | (low >> shift))

    inexact = np.flatnonzero((places > 0) & (places <= _ROUNDED_PLACES))
    _round(significand, inexact, low & (unit - 1), width * scale, distance * scale, unit)
    length = size + places
    _strip_zeros(significand, length, np.flatnonzero(places == 0))
    return significand, length, size + exponents[binary_exponent]


@functools.cache
def _scales() -> tuple[_Words, _Words, _Indexes, _Indexes]:
    """By biased binary exponent: `_scale`, and the digits that the whole part has at least."""
    # Once, and not to be kept one by one as well.
    scales = [_scale.__wrapped__(biased - 1022) for biased in range(2048)]
    powers, shifts, exponents = zip(*scales, strict=True)
    sizes = [len(str(power >> 1 + shift)) for power, shift, _ in scales]
    return (
        np.array(powers, np.uint64),
        np.array(shifts, np.uint64),
        np.array(exponents, np.intp),
        np.array(sizes, np.intp),
    )


def _product(a: _Words, b: _Words) -> tuple[_Words, _Words]:
    """The upper and the lower 64 bits of `a * b`."""
    a_high, a_low = a >> 32, a & _LOW_HALF
    b_high, b_low = b >> 32, b & _LOW_HALF
    low = a_low * b_low
    crossed, crossed_too = a_high * b_low, a_low * b_high
    middle = (low >> 32) + (crossed & _LOW_HALF) + (crossed_too & _LOW_HALF)
    high = a_high * b_high + (crossed >> 32) + (crossed_too >> 32) + (middle >> 32)
    return high, (middle << 32) | (low & _LOW_HALF)


def _decimal_places(fraction: _Words, width: _Words, unit: _Words, most: _Indexes) -> _Indexes:
    """The fewest fraction digits, at most `most`, whose rest lies within the width.

    Fewer digits are tried from `most` down, because most doubles need them all. The products that
    overflow are right modulo 2**64, and so modulo the unit.
    """
    places = np.where(fraction <= width, 0, most)
    pending = np.flatnonzero(places > 1)
    while pending.size:
        scale = _POWERS[places[pending] - 1]
        rest = fraction[pending] * scale & (unit[pending] - 1)
        pending = pending[rest < width[pending] * scale]
        places[pending] -= 1
        pending = pending[places[pending] > 1]
    return places


def _round(
    significand: _Words,
    where: _Indexes,
    rest: _Words,
    width: _Words,
    distance: _Words,
    unit: _Words,
) -> None:
    """Step down to the closest digits, as the end of `_grisu` does."""
    rest, width, distance, unit = (part[where] for part in (rest, width, distance, unit))
    while where.size:
        closer = (
            (rest < distance)
            & (unit <= width - rest)
            & ((rest + unit < distance) | (distance - rest > rest + unit - distance))
        )
        where = where[closer]
        significand[where] -= 1
        rest, width, distance, unit = (part[closer] for part in (rest, width, distance, unit))
        rest += unit


def _strip_zeros(significand: _Words, length: _Indexes, where: _Indexes) -> None:
    """Take the trailing zeros off the digits of whole scaled doubles; no others have any."""
    while where.size:
        shorter = significand[where] // 10
        stripped = shorter * 10 == significand[where]
        where = where[stripped]
        significand[where] = shorter[stripped]
        length[where] -= 1


def _lay_out(significand: _Words, length: _Indexes, point: _Indexes, widest: bool) -> _Digits:
    """The texts in columns, one character in a row: a sign, the digits and their point, a comma.

    Unused places hold NUL. `widest` makes room for any text.
    """
    plain = (point >= _FIRST_POINT) & (point <= _LAST_POINT)
    zeros = np.where(plain & (point <= 0), 1 - point, 0).astype(np.uint8)
    before = np.where(plain & (point > 0), point, 1).astype(np.uint8)
    shown = np.where(plain, np.maximum(length + zeros, before + 1), length).astype(np.uint8)

    exponents = widest or not plain.all()
    height = 24 if widest else int(shown.max())
    digits = np.zeros((max(height, 23), significand.size), np.uint8)
    digits[:_MOST_DIGITS] = _digits(significand * _POWERS[_MOST_DIGITS - length])
    for step in (4, 2, 1):
        moved = _mask(zeros & step != 0)
        digits[step:] = digits[step:] & ~moved | digits[:-step] & moved
        digits[:step] &= ~moved
    digits = digits[:height]
    row = np.arange(height, dtype=np.uint8)[:, np.newaxis]
    digits |= ord("0")
    digits &= _mask(row < shown)

    columns = np.zeros((height + (8 if exponents else 3), significand.size), np.uint8)
    left = _mask(row < before)
    columns[1 : height + 1] = digits & left
    columns[2 : height + 2] |= digits & ~left
    columns[before + 1, np.arange(before.size)] = (shown > before) * ord(".")
    columns[-1] = ord(",")
    if exponents:
        scientific = np.flatnonzero(~plain)
        exponent = point[scientific] - 1
        size = np.abs(exponent)
        columns[-6, scientific] = ord("e")
        columns[-5, scientific] = (exponent < 0) * ord("-")
        columns[-4, scientific] = np.where(size >= 100, size // 100 + ord("0"), 0)
        columns[-3, scientific] = np.where(size >= 10, size // 10 % 10 + ord("0"), 0)
        columns[-2, scientific] = size % 10 + ord("0")
    return columns


def _digits(numbers: _Words) -> _Digits:
    """The 17 decimal digits of each number, in rows; halved again and again."""
    first = numbers // 10**16
    parts = (numbers - first * 10**16)[np.newaxis]
    for base, dtype in ((10**8, np.uint32), (10**4, np.uint16), (100, np.uint8), (10, np.uint8)):
        quotients = parts // base
        halves = np.empty((2 * len(parts), numbers.size), dtype)
        halves[0::2] = quotients
        halves[1::2] = parts - quotients * base
        parts = halves
    return np.concatenate((first.astype(np.uint8)[np.newaxis], parts))


def _mask(condition: npt.NDArray[np.bool_]) -> _Digits:
    """All bits where true: bitwise operations are faster on bytes than `np.where`."""
    return np.negative(condition.view(np.uint8))
