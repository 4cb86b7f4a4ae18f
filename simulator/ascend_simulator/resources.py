"""Handles of objects, budgets of limited device resources, and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from threading import Lock
from typing import Final, Generic, TypeVar

from ascend_simulator.codes import Code, MemcpyKind, Refused

Thing = TypeVar("Thing")

BASE: Final = 0x00AC_0000_0000_0000
"""The lowest handle.

No host mapping or device memory has such an address, so a handle used as an address, or an address
used as a handle, is detected.
"""

_KIND_BYTES: Final = 1 << 40
_kinds = count()


class Handles(Generic[Thing]):
    """Objects of one kind by handle. A handle is never reused, even after `reset_for_tests`.

    Handles of different kinds differ, so that a handle of a wrong kind is always detected. Callers
    hold the process's lock for compound operations.
    """

    # Shared by all instances, so that handles stay unique after `reset_for_tests`.
    _next: Final[dict[str, Iterator[int]]] = {}

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._alive: dict[int, Thing] = {}
        if kind not in self._next:
            first = BASE + next(_kinds) * _KIND_BYTES
            self._next[kind] = count(first + 0x40, 0x40)

    def add(self, thing: Thing) -> int:
        """Add an object; return its handle."""
        handle = next(self._next[self.kind])
        self._alive[handle] = thing
        return handle

    def get(self, handle: int) -> Thing | None:
        """Return the object of a handle; None for an unknown or removed handle."""
        return self._alive.get(handle)

    def remove(self, handle: int) -> Thing:
        """Remove and return the object of a handle. Raises KeyError for an unknown handle."""
        return self._alive.pop(handle)

    def __len__(self) -> int:
        return len(self._alive)

    def __iter__(self) -> Iterator[Thing]:
        return iter(list(self._alive.values()))


class HandleTables:
    """A `Part` of the process whose attributes are the `Handles` of one namespace."""

    def live(self) -> list[str]:
        """Return the number of handles of each kind that were not destroyed, as text."""
        kinds = [kind for kind in vars(self).values() if isinstance(kind, Handles)]
        return [f"{len(kind)} {kind.kind}(s)" for kind in kinds if len(kind)]

    def close(self) -> None:
        """Do nothing: handles hold no resources."""


class Budget:
    """A limited number of resources of one kind per device. Callers hold the process's lock."""

    def __init__(self, kind: str, most: int, code: Code) -> None:
        """Make a budget. `kind` is a plural for messages; `code` is the code of `Refused`."""
        self._kind: Final = kind
        self._most: Final = most
        self._code: Final = code
        self._taken: Counter[int] = Counter()

    def take(self, device: int, what: str, count: int = 1) -> None:
        """Reserve `count` resources. Raises Refused, without reserving, if too few are left."""
        if self._taken[device] + count > self._most:
            raise Refused(
                self._code,
                f"{what}: found {self._taken[device]:,} of {self._most:,} {self._kind} of device "
                f"{device} in use, expected {count} free",
            )
        self._taken[device] += count

    def give(self, device: int, count: int = 1) -> None:
        """Release `count` resources."""
        self._taken[device] -= count


class Counters:
    """Counters since the start of the process. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.calls: Counter[str] = Counter()
        """Calls by function."""
        self.copied_bytes: Counter[str] = Counter()
        """Bytes by name of the copy kind."""
        self.mallocs: Counter[str] = Counter()
        """Device allocations by phase ("load", "run")."""
        self.executions = 0
        self.gil_held_ns = 0
        """Time in functions that hold the GIL on a device."""

    def count(self, name: str, gil_held_ns: int) -> None:
        """Count a finished call of `name`."""
        with self._lock:
            self.calls[name] += 1
            self.gil_held_ns += gil_held_ns

    def copied(self, kind: MemcpyKind, nbytes: int) -> None:
        """Count copied bytes."""
        with self._lock:
            self.copied_bytes[kind.name] += nbytes

    def allocated(self, phase: str) -> None:
        """Count an allocation of device memory."""
        with self._lock:
            self.mallocs[phase] += 1

    def executed(self) -> None:
        """Count an execution."""
        with self._lock:
            self.executions += 1

    @property
    def synchronizations(self) -> int:
        """The number of calls that waited for the device."""
        return sum(n for name, n in self.calls.items() if name.startswith("rt.synchronize_"))
