"""The health of a model: its failed instances and its readiness probes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

#: Returns True if an instance is ready. May block for seconds.
Probe = Callable[[], bool]


class Health:
    """The reasons why a model is not ready. Thread-safe; reading takes no lock.

    An unhealthy model still accepts requests, which its other or restarted instances execute. Only
    its readiness changes.

    Args:
        parts: The health of the models that an ensemble consists of.
    """

    def __init__(self, parts: Sequence[Health] = ()) -> None:
        self._parts = tuple(parts)
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._probes: dict[str, Probe] = {}
        # Derived from the two dictionaries, and replaced as a whole, so that reading needs no lock.
        self._own = ""
        self._all_probes: tuple[Probe, ...] = ()

    def __repr__(self) -> str:
        return f"Health({self.reason or 'well'})"

    @property
    def reason(self) -> str:
        """The reason why the model is not ready; empty if it is."""
        return self._own or next((part.reason for part in self._parts if part.reason), "")

    @property
    def own_reason(self) -> str:
        """The reasons of this model's own instances; empty if all can execute."""
        return self._own

    @property
    def own_probes(self) -> tuple[Probe, ...]:
        """The probes of this model's own instances."""
        return self._all_probes

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The probes that decide whether a healthy model is ready. Each may block."""
        if not self._parts:
            return self._all_probes
        return sum((part.probes for part in self._parts), self._all_probes)

    def add_probe(self, instance: str, probe: Probe) -> None:
        """Add the probe of an instance."""
        with self._lock:
            self._probes[instance] = probe
            self._all_probes = tuple(self._probes.values())

    def mark_unhealthy(self, instance: str, reason: str) -> None:
        """Set or replace the reason why an instance cannot execute."""
        with self._lock:
            self._reasons[instance] = reason
            self._own = "; ".join(self._reasons.values())

    def forget(self, instance: str) -> None:
        """Remove an instance that no longer exists."""
        with self._lock:
            self._reasons.pop(instance, None)
            self._probes.pop(instance, None)
            self._own = "; ".join(self._reasons.values())
            self._all_probes = tuple(self._probes.values())

    def mark_healthy(self, instance: str) -> None:
        """Remove the reason of an instance, which can execute again."""
        with self._lock:
            self._reasons.pop(instance, None)
            self._own = "; ".join(self._reasons.values())
