"""Experiments that find the sizes of an axis and the values of ids at which a graph executes."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Mapping
from typing import Final

from ge_runtime.discovery.graph import Port
from ge_runtime.discovery.study import Axis, Content, Study, last_true
from ge_runtime.memory.machine import read_limits
from ge_runtime.specs import DType, Tensors

_MULTIPLES: Final = (1, 2, 4, 8, 16, 32, 64)
_ELEMENTS_MOST: Final = 2**20
"""Maximum number of elements of one row of the largest input in trials of larger sizes."""
_TOGETHER_MOST: Final = 2**21
"""Maximum number of elements of one row of the largest input with all axes at their limits."""
_SIZE_MOST: Final[Mapping[int, int]] = {1: 2**19, 2: 1024}
"""The largest size that is tried, by the number of free axes of an input. `_TOKENS_MOST` is lower,
because attention needs memory in proportion to the square of the size."""
_TOKENS_MOST: Final = 2048
_GROWTH_MOST: Final = 128 * 2**20
"""No larger size is tried after an execution that increases the process's peak memory by more
bytes."""
_SHARE: Final = 4
"""All rows together may need a quarter of the machine's free memory."""
_SECONDS_MOST: Final = 0.25
"""No larger size is tried after an execution that takes more CPU seconds."""
_TOTAL_MOST: Final = 1.0
"""Limit of the CPU seconds of all executions at larger sizes of one axis."""
_IDS_MOST: Final = 2**31 - 1
_SMALLER: Final = 8
"""Trials of ids divide the base by this number, because each input needs dozens of trials."""


def find_limits(study: Study, axis: Axis, rows: int) -> None:
    """Find the multiple, the smallest and the largest size of an axis, and store them in the axis.

    The graph executes at `base`, and is assumed to execute at all multiples between the smallest
    and the largest size. The memory that `rows` rows need bounds the largest size.
    """

    def works(size: int) -> bool:
        return study.works({**study.sizes, **dict.fromkeys(axis.symbols, size)})

    axis.multiple = _multiple(axis.base, works)
    step = axis.multiple
    base = axis.base // step
    # Most graphs execute the smallest multiple.
    fails_below = 0 if works(step) else last_true(1, base, lambda steps: not works(steps * step))
    axis.smallest = (fails_below + 1) * step

    def reaches(steps: int) -> bool:
        # A size that was tried earlier is executed again, because the budget measures its cost.
        sizes = {**study.sizes, **dict.fromkeys(axis.symbols, steps * step)}
        if study.works(sizes, again=True):
            return True
        axis.stopped = study.graph.last_error
        return False

    most = _size_most(study, axis)
    budget = _Budget(rows)
    largest = base
    while 2 * largest * step <= most and budget.allows():
        if not reaches(2 * largest):
            largest = last_true(largest, 2 * largest, reaches)
            break
        largest *= 2
    axis.largest = largest * step


def fit_together(study: Study) -> None:
    """Lower the largest sizes until inputs with the largest sizes of all axes are small enough."""
    while True:
        elements = study.most_elements(study.at_limits())
        high = max(study.axes, key=lambda axis: axis.largest / axis.base, default=None)
        if high is None or elements <= _TOGETHER_MOST or high.largest < 2 * high.base:
            return
        high.largest = high.largest // 2 // high.multiple * high.multiple
        high.stopped = ""


class _Budget:
    """Limits of time and memory: an execution of twice the size may need four times as much."""

    def __init__(self, rows: int) -> None:
        free = min((limit.free_bytes for limit in read_limits()), default=_GROWTH_MOST)
        self._growth = min(_GROWTH_MOST, free // (_SHARE * rows))
        self._bytes, self._seconds = _peak_bytes(), time.process_time()
        self._start = self._seconds

    def allows(self) -> bool:
        """Return whether the executions since the last call were cheap; true at the first call."""
        used, now = _peak_bytes(), time.process_time()
        cheap = used - self._bytes < self._growth and now - self._seconds < _SECONDS_MOST
        cheap &= now - self._start < _TOTAL_MOST
        self._bytes, self._seconds = used, now
        return cheap


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _multiple(base: int, works: Callable[[int], bool]) -> int:
    """Return the smallest step, a power of two, by which sizes near `base` may differ.

    Sizes above `base` are tried if the graph executes them: text detectors execute many small sizes
    because of rounding, but larger sizes only at multiples.
    """
    sign = 1 if works(2 * base) else -1
    for step in _MULTIPLES:
        near = sign * step
        if (
            base % step == 0
            and base + 3 * near > 0
            and works(base + near)
            and works(base + 3 * near)
        ):
            return step
    return base


def _size_most(study: Study, axis: Axis) -> int:
    """Return the largest size to try."""
    most = 2**19
    for port in study.graph.inputs:
        free = [dim for dim in port.symbols if dim not in study.rows.symbols]
        if not {*free} & {*axis.symbols}:
            continue
        fixed = math.prod(dim for dim in port.dims if isinstance(dim, int))
        # Only one-dimensional floats (audio) may be long, not ids, features or other layouts.
        if port.dtype.is_integer or fixed > 1 or port.dims[-1] not in axis.symbols:
            most = min(most, _TOKENS_MOST)
        others = math.prod(study.sizes[dim] for dim in free if dim not in axis.symbols)
        most = min(
            most,
            _SIZE_MOST.get(len(free), _SIZE_MOST[2]),
            _ELEMENTS_MOST * max(fixed, 1) // max(fixed * others, 1),
        )
    return max(most, axis.base)


def find_ids(study: Study) -> None:
    """Find the largest value of each integer input that the graph accepts.

    An input that accepts all values is not an index into a table and gets no entry. A graph fails
    with ids outside its table, so the largest accepted id is found by bisection, at small sizes. If
    this id depends on the size of an axis, the input is an index into another input, and
    `bounded_ids` gets the axis.
    """
    small = {
        one: max(axis.smallest, axis.base // _SMALLER // axis.multiple * axis.multiple)
        for axis in study.axes
        for one in axis.symbols
    }
    sizes = {**study.sizes, **small}
    for port in study.graph.inputs:
        looked_up = study.contents[port.name] in (Content.VALUES, Content.TYPES)
        if not port.dtype.is_integer or not looked_up or port.name in study.constants:
            continue
        if port.dtype in (DType.INT8, DType.UINT8):
            continue  # usually pixels; the range of the type is small enough
        largest = _largest_id(study, port, study.values(sizes))
        if largest is None:
            continue
        for axis in study.axes:
            larger = min(2 * sizes[axis.symbols[0]], axis.largest)
            values = study.values({**sizes, **dict.fromkeys(axis.symbols, larger)})
            ends = [_accepts(study, values, port.name, largest + more) for more in (0, 1)]
            if ends != [True, False]:
                study.bounded_ids[port.name] = axis.name
        if port.name not in study.bounded_ids:
            study.ids[port.name] = largest


def _largest_id(study: Study, port: Port, values: Tensors) -> int | None:
    """Return the largest value that the graph accepts; None if it accepts all or fails with 0."""
    low, high = 0, min(_IDS_MOST, int(port.dtype.largest))
    if not _accepts(study, values, port.name, low) or _accepts(study, values, port.name, high):
        return None
    return last_true(low, high, lambda value: _accepts(study, values, port.name, value))


def _accepts(study: Study, values: Tensors, name: str, value: int) -> bool:
    """Return whether the graph executes if the last element of an input has this value."""
    tensor = values[name].copy()
    tensor.reshape(-1)[-1:] = value
    return study.graph.run({**values, name: tensor}) is not None
