"""What a pool has done and holds at one moment, for people and for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ge_runtime.memory.table import aligned


@dataclass(frozen=True, slots=True)
class Held:
    """What one owner holds. An owner that does nothing and holds something leaks."""

    leases: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Sizes in bytes, times in seconds; counts since the pool was made."""

    capacity: int
    leased: int
    peak: int
    """The most that was ever leased at once."""
    largest_free: int
    """A larger lease has to wait, even if more is free in all."""
    waiting: int
    """Leases that are waited for now."""
    granted: int
    """Leases, those that waited included."""
    waited: int
    """Those that had to wait, however that ended."""
    wait_s: float
    """Of waits that ended, in all."""
    longest_wait_s: float
    timeouts: int
    cancelled: int
    refused: int
    """Those that never could fit, found the queue full, or met a closed pool."""
    by_owner: Mapping[str, Held]
    """Who holds something now."""

    def table(self) -> list[str]:
        """All of it for people, one line each."""
        held = [
            (f"  {owner}", held.nbytes, f" in {held.leases} lease(s)")
            for owner, held in self.by_owner.items()
        ]
        sizes = [
            ("capacity", self.capacity, ""),
            ("leased", self.leased, ""),
            *held,
            ("peak", self.peak, ""),
            ("largest free", self.largest_free, ""),
        ]
        waits = f"for {self.wait_s:.3f} s in all, {self.longest_wait_s:.3f} s at most"
        counts = [
            ("waiting", self.waiting, ""),
            ("granted", self.granted, ""),
            ("waited", self.waited, waits if self.waited else ""),
            ("timeouts", self.timeouts, ""),
            ("cancelled", self.cancelled, ""),
            ("refused", self.refused, ""),
        ]
        return aligned(
            [
                *((name, f"{nbytes:,}", f"bytes{note}") for name, nbytes, note in sizes),
                *((name, f"{count:,}", note) for name, count, note in counts),
            ],
            "<><",
        )
