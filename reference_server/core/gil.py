"""Limits for work on the event loop, and functions that let other threads run during long work.

A codec thread does work beyond the limits (`is_long`). One call of C code that walks or frees
millions of objects holds the interpreter lock (GIL) until it returns, on any thread. So such work
is cut into pieces, with pauses between them. Short work is not cut, and costs one comparison.
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

# The most work on one request or response on the event loop: a few milliseconds each.
#: Bytes of JSON that are read.
JSON_BYTES = 1 << 17
#: Bytes of a protobuf message of any content.
MESSAGE_BYTES = 1 << 12
#: Bytes and fields of a protobuf message without unknown fields; raw tensors do not count.
HEAD_BYTES, HEAD_FIELDS = 1 << 15, 1 << 10
#: Bytes to decompress (each becomes at most 1,000 bytes), and bytes to compress.
PACKED_BYTES, PLAIN_BYTES = 1 << 10, 1 << 16
#: Bytes of shared memory that are copied.
SHARED_BYTES = 8 << 20
#: Bytes of strings that are counted, or escaped for JSON.
STRING_BYTES = 1 << 16
#: Elements that are converted to text, sorted, or joined.
ELEMENTS = 1 << 13

#: Objects handled by one call of C code: less than a millisecond of work.
SLICE = 1 << 14
#: Objects handled by Python code between two pauses: about a millisecond of work.
_SLICE_IN_PYTHON = 1 << 10
#: A thread that releases the GIL without sleeping may get it back at once.
_YIELD_S = 20e-6
#: Several times as long as the work between two such pauses.
_BACK_OFF_S = 200e-6
#: The longest time without garbage collection.
_MOST_WITHOUT_GC_S = 10.0

T = TypeVar("T")


def is_long(
    *,
    json_bytes: int = 0,
    message_bytes: int = 0,
    head_bytes: int = 0,
    packed_bytes: int = 0,
    plain_bytes: int = 0,
    shared_bytes: int = 0,
    string_bytes: int = 0,
    elements: int = 0,
) -> bool:
    """Return True if the work would block the event loop, so that a codec thread must do it."""
    return (
        json_bytes > JSON_BYTES
        or message_bytes > MESSAGE_BYTES
        or head_bytes > HEAD_BYTES
        or packed_bytes > PACKED_BYTES
        or plain_bytes > PLAIN_BYTES
        or shared_bytes > SHARED_BYTES
        or string_bytes > STRING_BYTES
        or elements > ELEMENTS
    )


def yield_gil() -> None:
    """Let other threads run."""
    time.sleep(_YIELD_S)


def back_off() -> None:
    """Let other threads run for longer, during work on input that is probably an attack."""
    time.sleep(_BACK_OFF_S)


class _GarbageCollector:
    """Pauses Python's garbage collector, which stops all threads while it walks the objects.

    While millions of lists are made, such as the rows of a matrix in JSON, it often walks all
    objects.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._is_paused = False
        self._since_s = 0.0

    def pause(self) -> None:
        with self._lock:
            self._users += 1
            if gc.isenabled():
                gc.disable()
                self._is_paused = True
                self._since_s = time.monotonic()

    def resume(self) -> None:
        """Enable the collector after the last user, or after a long pause."""
        with self._lock:
            self._users -= 1
            paused_s = time.monotonic() - self._since_s
            if self._is_paused and (not self._users or paused_s > _MOST_WITHOUT_GC_S):
                self._is_paused = False
                gc.enable()


_collector = _GarbageCollector()


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Pause garbage collection while millions of objects are made and freed. Any thread."""
    _collector.pause()
    try:
        yield
    finally:
        _collector.resume()


def slices(items: Sequence[T], most: int | None = None) -> Iterator[Sequence[T]]:
    """Yield `items` in consecutive parts of at most `most` elements, with pauses between them."""
    most = most or SLICE
    if len(items) <= most:
        yield items
        return
    for start in range(0, len(items), most):
        yield items[start : start + most]
        yield_gil()


def with_pauses(items: Sequence[T]) -> Iterable[T]:
    """Iterate over `items`, each of which takes microseconds of Python code, with pauses."""
    if len(items) <= _SLICE_IN_PYTHON:
        return items
    return chain.from_iterable(slices(items, _SLICE_IN_PYTHON))


def sorted_names(names: Collection[str]) -> Iterable[str]:
    """Iterate over `names` in ascending order."""
    if len(names) <= SLICE:
        return sorted(names)
    return _merge_sorted(names)


def _merge_sorted(names: Collection[str]) -> Iterator[str]:
    """Sort very many names slice by slice, and merge the slices."""
    remaining = iter(names)
    parts: list[list[str]] = []
    while part := list(islice(remaining, SLICE)):
        part.sort()
        parts.append(part)
        yield_gil()
    for count, name in enumerate(heapq.merge(*parts), 1):
        if not count % SLICE:
            yield_gil()
        yield name


def concatenate(lists: list[list[T]]) -> list[T]:
    """Return the elements of all `lists`, in order."""
    if len(lists) == 1:
        return lists[0]
    joined: list[T] = []
    for some in slices(lists):
        elements = chain.from_iterable(some)
        while part := list(islice(elements, SLICE)):
            joined += part
            if len(part) == SLICE:
                yield_gil()
    return joined


def free(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Free a JSON value slice by slice. Long lists in it are empty afterwards."""
    pending = [value]
    freed = 0
    while pending:
        part = pending.pop()
        if type(part) is dict:
            pending.extend(part.values())
        elif type(part) is list:
            if part and type(part[-1]) in (list, dict):
                pending.append(part)  # again, once its last element is freed
                pending.append(part.pop())
                freed += 1
            elif len(part) > SLICE:
                del part[-SLICE:]
                pending.append(part)
                freed += SLICE
            else:
                freed += len(part)
        if freed > SLICE:
            freed = 0
            yield_gil()
