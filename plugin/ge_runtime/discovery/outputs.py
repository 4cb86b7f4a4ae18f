"""Fits the sizes of outputs to the sizes of axes, from executions at different sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ge_runtime.discovery.study import Axis, last_true
from ge_runtime.specs import Relation

SizeOf = Callable[[Mapping[str, int]], "int | None"]
"""Returns the measured size of an output's dim at these sizes of axes; None if the graph fails."""

_LINEAR: Final = re.compile(r"((?:\d+ \* )?\w+)( [+-] \d+)?")
"""A multiple of one axis plus a constant."""
_JUMP_MOST: Final = 4096
"""The largest period of a fitted size: strides of audio models are in the hundreds."""


class Unfitted(Exception):
    """No relation was found; the text says what was measured."""


def fit(axes: Sequence[Axis], measure: SizeOf) -> int | str:
    """Return a dim of config.pbtxt: a fixed size, or the text of a relation between axes.

    Nested floor divisions with fixed strides equal a single division: (((x + a) // b) + c) // d is
    (x + a + b * c) // (b * d). So one division by the period and one offset are enough for a chain
    of convolutions. Two jumps of the size show the period. The result is verified at other sizes.

    Raises:
        Unfitted: The size depends on values, or on sizes in another way.
    """
    base = {axis.name: axis.base for axis in axes}
    at_base = _measured(measure, base)
    dependent = [axis for axis in axes if _depends(axis, base, at_base, measure)]
    if not dependent:
        return at_base
    try:
        parts = [_fit_one(axis, base, measure) for axis in dependent]
        candidates = parts if len(parts) == 1 else _combined(parts, dependent, base, at_base)
    except ValueError as error:  # a relation that falls when an axis grows
        raise Unfitted(f"found {at_base} at {_text(base)}, expected {error}") from error
    for text in candidates:
        relation = Relation.parse(text)
        if all(_measured(measure, sizes) == relation.size(sizes) for sizes in _checks(axes, base)):
            return relation.text
    names = " and ".join(axis.name for axis in dependent)
    raise Unfitted(
        f"found {at_base} at {_text(base)}, and no relation of {names} that gives the output's "
        "size there and at other sizes"
    )


def _depends(axis: Axis, base: Mapping[str, int], at_base: int, measure: SizeOf) -> bool:
    sizes = {axis.smallest, axis.largest, min(2 * axis.base, axis.largest)} - {axis.base}
    return any(_measured(measure, {**base, axis.name: size}) != at_base for size in sizes)


def _fit_one(axis: Axis, base: Mapping[str, int], measure: SizeOf) -> str:
    """Fit a size to one axis, with the other axes at their base."""
    step = axis.multiple

    def at(size: int) -> int:
        return _measured(measure, {**base, axis.name: size})

    low = axis.base if axis.base < axis.largest else axis.smallest
    first = _next_jump(at, low, axis.largest, step)
    second = first and _next_jump(at, first, axis.largest, step)
    if first is None or second is None:
        low = axis.smallest
        first = _next_jump(at, low, axis.largest, step)
        second = first and _next_jump(at, first, axis.largest, step)
    if first is None or second is None:
        raise Unfitted(f"found fewer than two changes of the size along {axis.name}")
    period, rise = second - first, at(second) - at(first)
    if period == step and rise % step == 0:  # linear
        factor = rise // step
        text = f"{factor} * {axis.name} + {at(first) - factor * first}"
    else:
        # rise * ((x - first) // period) + at(first), transformed so that the offset in the brackets
        # is not negative if possible.
        whole = at(first) // rise if at(first) % rise == 0 else 0
        offset, rest = whole * period - first, at(first) - rise * whole
        text = f"{rise} * (({axis.name} + {offset}) // {period}) + {rest}"
    text = _plain(text)
    smallest = at(axis.smallest)
    if Relation.parse(text).size({axis.name: axis.smallest}) < smallest:
        text = f"max({text}, {smallest})"
    return text


def _next_jump(at: Callable[[int], int], low: int, most: int, step: int) -> int | None:
    """Return the first size above `low` at which the measured size differs; sizes grow by `step`.

    The measured size must not fall when the axis grows.
    """
    start, reach = at(low), step
    while True:
        high = min(low + reach, most)
        if high <= low:
            return None
        if at(high) != start:
            break
        if high == most or reach > _JUMP_MOST * step:
            return None
        reach *= 2
    above = (high - low) // step
    if at(low + above * step) == start:
        return None
    return low + (last_true(0, above, lambda steps: at(low + steps * step) == start) + 1) * step


def _combined(
    parts: Sequence[str], axes: Sequence[Axis], base: Mapping[str, int], at_base: int
) -> list[str]:
    """Return candidates for a size that several axes determine: a product or a sum.

    Each part was measured with the other axes at their base, so the parts differ from the factors
    of a product by a constant factor, and from the terms of a sum by a constant.
    """
    linear = [_LINEAR.fullmatch(part) for part in parts]
    total = at_base * (len(parts) - 1)
    if all(linear):
        terms = [match[1] for match in linear if match]
        offsets = (int((match[2] or "0").replace(" ", "")) for match in linear if match)
        candidates = [f"{' + '.join(terms)} + {sum(offsets) - total}"]
    else:
        candidates = [f"{' + '.join(f'({part})' for part in parts)} - {total}"]
    # A product with strides: the product of all axes, each divided by a stride, times a constant.
    for stride in (1, 2, 4, 8, 14, 16, 32):
        factors = [f"({axis.name} // {stride})" for axis in axes]
        product = 1
        for axis in axes:
            product *= base[axis.name] // stride
        whole = at_base // product if product and at_base % product == 0 else 1
        for factor in dict.fromkeys((1, 2, 3, 4, whole)):
            rest = at_base - factor * product
            if 0 <= rest <= at_base // 2 or rest == 0:
                candidates.append(f"{factor} * {' * '.join(factors)} + {rest}")
    return [_plain(text) for text in candidates]


def _checks(axes: Sequence[Axis], base: Mapping[str, int]) -> list[dict[str, int]]:
    """Return sizes for the verification: extremes, neighbours, and sizes between."""
    found = [dict(base)]
    for place in range(9):
        sizes = {}
        for at, axis in enumerate(axes):
            low, high = axis.smallest // axis.multiple, _largest(axis) // axis.multiple
            span = high - low
            chosen = (
                *(low, high, low + 1, high - 1),
                *(low + span // 3, low + span * 5 // 7, low + span // 11, low + 3, low + span // 2),
            )[(place + 4 * at) % 9]
            sizes[axis.name] = min(max(chosen, low), high) * axis.multiple
        found.append(sizes)
    return found


def _largest(axis: Axis) -> int:
    return min(axis.largest, max(8 * axis.base, axis.smallest + 16 * axis.multiple))


def _measured(measure: SizeOf, sizes: Mapping[str, int]) -> int:
    size = measure(sizes)
    if size is None:
        raise Unfitted(f"found no execution at {_text(sizes)}")
    return size


def _plain(text: str) -> str:
    """Remove factors of 1, terms of 0, and needless brackets."""
    text = re.sub(r"(?<!\d)1 \* ", "", text)
    for needless, plain in ((" + 0)", ")"), ("+ -", "- ")):
        text = text.replace(needless, plain)
    text = text.removesuffix(" + 0").removesuffix(" - 0")
    return Relation.parse(text).text


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())
