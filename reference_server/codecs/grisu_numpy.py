"""Doubles as decimal text where `grisu` is not compiled: its digits, of many at once in NumPy."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import orjson

from reference_server.codecs import grisu
from reference_server.codecs.grisu import (
    EXACT_INTEGERS,
    FIRST_POINT,
    LAST_POINT,
    MOST_DIGITS,
    ROUNDED_PLACES,
)

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
_Doubles = npt.NDArray[np.float64]
_Words = npt.NDArray[np.uint64]
_Indexes = npt.NDArray[np.intp]
_Digits = npt.NDArray[np.uint8]

#: Up to here one double after the other is faster than NumPy's fixed cost per call.
FEW = 64
_SMALLEST_NORMAL = 2.0**-1022

_POWERS = 10 ** np.arange(MOST_DIGITS, dtype=np.uint64)
_ONE = np.uint64(1)
_LOW_HALF = np.uint64(2**32 - 1)
_HIDDEN_BIT = np.uint64(2**52)


def texts(values: Floats) -> bytes:
    """Numbers, at least one, as `grisu.text` prints them as doubles, joined by commas."""
    if values.size <= FEW:
        return _texts_of_few(values.tolist())
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return _texts_of_many(values.astype(np.float64, copy=False))


def _texts_of_few(values: list[float]) -> bytes:
    written = orjson.dumps(values)
    are_whole = written.count(b".0,") + written.endswith(b".0]") == len(values)
    if are_whole and max(*values, -min(values)) < EXACT_INTEGERS:
        return written[1:-1]
    return ",".join(map(grisu.text, values)).encode()


def _texts_of_many(values: _Doubles) -> bytes:
    magnitudes = np.abs(values)
    if np.array_equal(values, np.rint(values)) and magnitudes.max() < EXACT_INTEGERS:
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    regular = (magnitudes >= _SMALLEST_NORMAL) & (magnitudes < np.inf)
    significands, lengths, points = _grisu_many(np.where(regular, magnitudes, 1.0))
    # A zero has the layout of the one that took its place.
    significands[magnitudes == 0.0] = 0
    odd = np.flatnonzero(~regular & (magnitudes != 0.0))
    columns = _lay_out(significands, lengths, points, widest=bool(odd.size))
    columns[0] = np.signbit(values) * ord("-")
    for index in odd:
        shown = grisu.text(float(values[index])).encode()
        columns[:-1, index] = np.frombuffer(shown.ljust(len(columns) - 1, b"\0"), np.uint8)
    # Column by column, which is much faster than one transposed copy.
    rows = np.empty(columns.shape[::-1], np.uint8)
    for number, column in enumerate(columns):
        rows[:, number] = column
    return rows.tobytes().translate(None, b"\0")[:-1]


def _grisu_many(values: _Doubles) -> tuple[_Words, _Indexes, _Indexes]:
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
    places = _decimal_places(fraction, width, unit, MOST_DIGITS - size)
    scale = _POWERS[places]
    high, low = _product(fraction, scale)
    significand = whole * scale + ((high << (64 - shift)) | (low >> shift))

    inexact = np.flatnonzero((places > 0) & (places <= ROUNDED_PLACES))
    _round(significand, inexact, low & (unit - 1), width * scale, distance * scale, unit)
    length = size + places
    _strip_zeros(significand, length, np.flatnonzero(places == 0))
    return significand, length, size + exponents[binary_exponent]


@functools.cache
def _scales() -> tuple[_Words, _Words, _Indexes, _Indexes]:
    """By biased binary exponent: `_scale`, and the digits that the whole part has at least."""
    scales = [_scale(biased) for biased in range(2048)]
    powers, shifts, exponents = zip(*scales, strict=True)
    sizes = [len(str(power >> 1 + shift)) for power, shift, _ in scales]
    return (
        np.array(powers, np.uint64),
        np.array(shifts, np.uint64),
        np.array(exponents, np.intp),
        np.array(sizes, np.intp),
    )


def _scale(biased: int) -> tuple[int, int, int]:
    """What brings doubles of a biased binary exponent to fixed point.

    Gives the 64-bit significand of a power of ten, the fraction bits of the product, and the
    exponent that takes the power back.
    """
    # RapidJSON's own estimate of the power, in steps of eight decimal digits.
    estimate = math.ceil((1025 - biased) * 0.30102999566398114 + 347)
    exponent = 340 - 8 * (estimate >> 3)
    power, power_exponent = _power_of_ten(-exponent)
    return power, 1022 - biased - power_exponent, exponent


_power_of_ten = functools.cache(grisu.power_of_ten)


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
    plain = (point >= FIRST_POINT) & (point <= LAST_POINT)
    zeros = np.where(plain & (point <= 0), 1 - point, 0).astype(np.uint8)
    before = np.where(plain & (point > 0), point, 1).astype(np.uint8)
    shown = np.where(plain, np.maximum(length + zeros, before + 1), length).astype(np.uint8)

    exponents = widest or not plain.all()
    height = 24 if widest else int(shown.max())
    digits = np.zeros((max(height, 23), significand.size), np.uint8)
    digits[:MOST_DIGITS] = _digits(significand * _POWERS[MOST_DIGITS - length])
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
