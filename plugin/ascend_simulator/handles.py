"""Opaque integers for what is no memory: contexts, streams, events, and what models need."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final, Generic, TypeVar

Thing = TypeVar("Thing")

BASE: Final = 0x00AC_0000_0000_0000
"""Handles lie from here on, where no host mapping and no device memory is."""

_KIND_BYTES: Final = 1 << 40
_kinds = count()


class Handles(Generic[Thing]):
    """Things of one kind by handle. A handle is never given twice, in no process state.

    Handles of different kinds differ, so that one passed for another is no match by chance. Callers
    hold the machine's lock where they need more than one step to be one.
    """

    _next: Final[dict[str, Iterator[int]]] = {}

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._alive: dict[int, Thing] = {}
        if kind not in self._next:
            first = BASE + next(_kinds) * _KIND_BYTES
            self._next[kind] = count(first + 0x40, 0x40)

    def add(self, thing: Thing) -> int:
        """The handle under which `thing` is from now on."""
        handle = next(self._next[self.kind])
        self._alive[handle] = thing
        return handle

    def get(self, handle: int) -> Thing | None:
        """The thing, None if there is none (any more)."""
        return self._alive.get(handle)

    def remove(self, handle: int) -> Thing:
        """The thing, which its handle no longer leads to. Raises KeyError if it never did."""
        return self._alive.pop(handle)

    def __len__(self) -> int:
        return len(self._alive)

    def __iter__(self) -> Iterator[Thing]:
        return iter(list(self._alive.values()))
