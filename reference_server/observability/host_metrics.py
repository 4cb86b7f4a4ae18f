"""The server's own metrics of the machine: CPU and memory, as Linux counts them."""

from __future__ import annotations

import re
from pathlib import Path

from reference_server.core.ports import Clock
from reference_server.core.telemetry import FamilyHead, MetricKind, Sample

_BYTES_PER_KIB = 1024
# Words of /proc/stat: behind `cpu` stand user, nice, system, idle, iowait, irq, softirq and steal.
# Those of guests, which come next, are part of others.
_ALL_TICKS = slice(1, 9)
_IDLE_TICKS = slice(4, 6)


def _gauge(name: str, description: str) -> FamilyHead:
    return FamilyHead(name, description, MetricKind.GAUGE)


_UTILIZATION = _gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]")
_MEMORY_TOTAL = _gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes")
_MEMORY_USED = _gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes")
_POOL_TOTAL = _gauge(
    "nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes"
)
_POOL_USED = _gauge(
    "nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes"
)

#: In the order of Triton's page.
HEADS = (_POOL_TOTAL, _POOL_USED, _UTILIZATION, _MEMORY_TOTAL, _MEMORY_USED)


class HostMetrics:
    """Reads the machine's gauges, at most once in `interval_ns`. Not thread-safe.

    The utilization is that of the time between two readings, and 0 in the first.
    """

    def __init__(
        self, clock: Clock, interval_ns: int, *, cpu: bool = True, proc: Path = Path("/proc")
    ) -> None:
        self._clock = clock
        self._interval_ns = interval_ns
        self._cpu = cpu
        self._proc = proc
        self._next_ns: int | None = None
        self._busy = self._elapsed = 0
        self._values: dict[FamilyHead, float] = {}

    def samples(self) -> dict[str, list[Sample]]:
        """The gauges by the names of their families; those of the CPU only where Linux tells."""
        now = self._clock.monotonic_ns()
        if self._next_ns is None or now >= self._next_ns:
            self._next_ns = now + self._interval_ns
            # There is no pinned memory here, as in a Triton whose pool is configured away.
            self._values = {_POOL_TOTAL: 0, _POOL_USED: 0, **(self._read() if self._cpu else {})}
        return {head.name: [Sample((), value)] for head, value in self._values.items()}

    def _read(self) -> dict[FamilyHead, float]:
        try:
            words = (self._proc / "stat").read_text().split()
            memory = (self._proc / "meminfo").read_text()
        except OSError:  # not Linux
            return {}
        total, available = (
            int(kib) * _BYTES_PER_KIB
            for kib in re.findall(r"^Mem(?:Total|Available): +(\d+) kB$", memory, re.MULTILINE)
        )
        return {
            _UTILIZATION: self._utilization(
                sum(map(int, words[_ALL_TICKS])), sum(map(int, words[_IDLE_TICKS]))
            ),
            _MEMORY_TOTAL: total,
            _MEMORY_USED: total - available,
        }

    def _utilization(self, elapsed: int, idle: int) -> float:
        is_first = not self._elapsed
        busy = elapsed - idle
        spent, passed = busy - self._busy, elapsed - self._elapsed
        self._busy, self._elapsed = busy, elapsed
        return 0.0 if is_first or passed <= 0 else spent / passed
