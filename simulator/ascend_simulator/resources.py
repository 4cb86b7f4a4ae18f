"""Handles of what is no memory, budgets of what a device has so many of, and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from threading import Lock
from typing import Final, Generic, TypeVar

from ascend_simulator.codes import Code, Refused
from ascend_simulator.enumerations import MemcpyKind

Thing = TypeVar("Thing")

BASE: Final = 0x00AC_0000_0000_0000
"""Handles lie from here on, where no host mapping and no device memory is: one that is passed as
an address, or an address as a handle, is found."""

_KIND_BYTES: Final = 1 << 40
_kinds = count()


class Handles(Generic[Thing]):
    """Things of one kind by handle. A handle is never given twice, in no process state.

    Handles of different kinds differ, so that one passed for another is no match by chance. Callers
    hold the process's lock where they need more than one step to be one.
    """

    # Of the class: a handle of a process that `reset_for_tests` ended is none in the next.
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


class Budget:
    """So many of one kind for each device. Callers hold the process's lock."""

    def __init__(self, kind: str, most: int, code: Code) -> None:
        """kind: in the plural, for people. code: of the refusal when there are no more."""
        self._kind: Final = kind
        self._most: Final = most
        self._code: Final = code
        self._taken: Counter[int] = Counter()

    def take(self, device: int, what: str, count: int = 1) -> None:
        """`count` more are in use. Raises Refused where there are not as many, and takes none."""
        if self._taken[device] + count > self._most:
            raise Refused(
                self._code,
                f"{what}: found {self._taken[device]:,} of {self._most:,} {self._kind} of device "
                f"{device} in use, and {count} wanted",
            )
        self._taken[device] += count

    def give(self, device: int, count: int = 1) -> None:
        """`count` are no longer in use."""
        self._taken[device] -= count


class Counters:
    """What happened since the process began. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.calls: Counter[str] = Counter()
        """Function -> calls."""
        self.copied_bytes: Counter[str] = Counter()
        """Name of the copy kind -> bytes."""
        self.mallocs: Counter[str] = Counter()
        """Phase ("load", "run") -> device allocations."""
        self.executions = 0
        self.gil_held_ns = 0
        """Time in functions that on a device keep the GIL."""

    def count(self, name: str, gil_held_ns: int) -> None:
        """A call of `name` ended."""
        with self._lock:
            self.calls[name] += 1
            self.gil_held_ns += gil_held_ns

    def copied(self, kind: MemcpyKind, nbytes: int) -> None:
        """Bytes were copied."""
        with self._lock:
            self.copied_bytes[kind.name] += nbytes

    def allocated(self, phase: str) -> None:
        """Device memory was allocated."""
        with self._lock:
            self.mallocs[phase] += 1

    def executed(self) -> None:
        """A model ran."""
        with self._lock:
            self.executions += 1

    @property
    def synchronizations(self) -> int:
        """Calls that waited for the device."""
        return sum(n for name, n in self.calls.items() if name.startswith("rt.synchronize_"))
