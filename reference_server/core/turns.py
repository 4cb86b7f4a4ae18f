"""Turns at the interpreter's lock: long work in pieces, between which other threads go on.

A single call of C code that looks at millions of objects, or frees them, keeps the lock for as long
as it lasts. What is short is not cut, and costs a comparison.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

#: Objects that are looked at in one go: less than a millisecond's work.
ELEMENTS = 1 << 14
#: Objects that are worked on in Python before others are let in: about a millisecond's work.
_MESSAGES = 1 << 10
#: Who only lets go of the lock may be the first to have it again; who sleeps is not.
_TURN_S = 20e-6
#: Some times as long as what is done between two such turns.
_LONG_TURN_S = 200e-6
#: How long there may be no collection of garbage.
_UNCOLLECTED_S = 10.0

T = TypeVar("T")


def give_way() -> None:
    """Let others have the interpreter."""
    time.sleep(_TURN_S)


def stand_back() -> None:
    """The same for longer, after work that is of no use to anybody."""
    time.sleep(_LONG_TURN_S)


class _Collector:
    """Python's collector of garbage, which stops everybody for as long as it looks at objects.

    Each new million of lists, such as the rows of a matrix in JSON, has it look at all of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._is_ours = False
        self._since_s = 0.0

    def hold(self) -> None:
        """Have it wait."""
        with self._lock:
            self._users += 1
            if gc.isenabled():
                gc.disable()
                self._is_ours = True
                self._since_s = time.monotonic()

    def release(self) -> None:
        """Let it go on when nobody else has it wait, or when it has waited for long."""
        with self._lock:
            self._users -= 1
            waited_s = time.monotonic() - self._since_s
            if self._is_ours and (not self._users or waited_s > _UNCOLLECTED_S):
                self._is_ours = False
                gc.enable()


_collector = _Collector()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Make millions of objects, and free them again, before the collector looks at them."""
    _collector.hold()
    try:
        yield
    finally:
        _collector.release()


def slices(items: Sequence[T], most: int | None = None) -> Iterator[Sequence[T]]:
    """`items` in parts that follow each other, of `most` elements."""
    most = most or ELEMENTS
    if len(items) <= most:
        yield items
        return
    for start in range(0, len(items), most):
        yield items[start : start + most]
        give_way()


def spread(items: Sequence[T]) -> Iterable[T]:
    """`items`, each of which is worth microseconds of Python, with turns between them."""
    return items if len(items) <= _MESSAGES else chain.from_iterable(slices(items, _MESSAGES))


def ordered(items: Collection[str]) -> Iterable[str]:
    """`items` in their order."""
    if len(items) <= ELEMENTS:
        return sorted(items)
    return _merged(items)


def _merged(items: Collection[str]) -> Iterator[str]:
    """The same, of very many: sorted in parts, which are merged."""
    left = iter(items)
    parts: list[list[str]] = []
    while part := list(islice(left, ELEMENTS)):
        part.sort()
        parts.append(part)
        give_way()
    for count, item in enumerate(heapq.merge(*parts), 1):
        if not count % ELEMENTS:
            give_way()
        yield item


def joined(lists: list[list[T]]) -> list[T]:
    """All that is in these lists, in order."""
    if len(lists) == 1:
        return lists[0]
    found: list[T] = []
    for some in slices(lists):
        elements = chain.from_iterable(some)
        while part := list(islice(elements, ELEMENTS)):
            found += part
            if len(part) == ELEMENTS:
                give_way()
    return found


def let_go(value: Any) -> None:  # noqa: ANN401 - whatever JSON can be
    """Free a value of JSON that nobody needs any more; its long lists are empty afterwards."""
    pending = [value]
    freed = 0
    while pending:
        one = pending.pop()
        if type(one) is dict:
            pending.extend(one.values())
        elif type(one) is list:
            if one and type(one[-1]) in (list, dict):
                pending.append(one)  # once more, when that is freed
                pending.append(one.pop())
                freed += 1
            elif len(one) > ELEMENTS:
                del one[-ELEMENTS:]
                pending.append(one)
                freed += ELEMENTS
            else:
                freed += len(one)
        if freed > ELEMENTS:
            freed = 0
            give_way()
