"""What is counted over the life of a process."""

from __future__ import annotations

from collections import Counter
from threading import Lock

from ascend_simulator.enumerations import MemcpyKind


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
