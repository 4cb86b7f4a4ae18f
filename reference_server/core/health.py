"""The health of what serves a model: failed instances, and probes of readiness."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

#: Whether an instance is ready; may block for seconds.
Probe = Callable[[], bool]


class Health:
    """Why a model is not ready: by its instances, and by the models that it is made of. Any thread.

    A model that is unhealthy goes on to take requests: its other instances, or the one that is
    started again, will answer them. It only does not call itself ready. Reading takes no lock.
    """

    def __init__(self, parts: Sequence[Health] = ()) -> None:
        self._parts = tuple(parts)
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._probes: dict[str, Probe] = {}
        # Made of these two under the lock, and replaced as a whole: so reading needs none.
        self._own = ""
        self._all_probes: tuple[Probe, ...] = ()

    def __repr__(self) -> str:
        return f"Health({self.reason or 'well'})"

    @property
    def reason(self) -> str:
        """Why the model is not ready; empty if it is."""
        return self._own or next((part.reason for part in self._parts if part.reason), "")

    @property
    def own_reason(self) -> str:
        """The same of its instances alone, whatever it is made of."""
        return self._own

    @property
    def own_probes(self) -> tuple[Probe, ...]:
        """The probes of its instances alone."""
        return self._all_probes

    @property
    def probes(self) -> tuple[Probe, ...]:
        """What is to be asked beyond that, as long as the model is well; each may block."""
        if not self._parts:
            return self._all_probes
        return sum((part.probes for part in self._parts), self._all_probes)

    def add_probe(self, instance: str, probe: Probe) -> None:
        """`instance` can tell by itself whether it is ready."""
        with self._lock:
            self._probes[instance] = probe
            self._all_probes = tuple(self._probes.values())

    def mark_unhealthy(self, instance: str, reason: str) -> None:
        """`instance` cannot execute; `reason` replaces what was said of it before."""
        with self._lock:
            self._reasons[instance] = reason
            self._own = "; ".join(self._reasons.values())

    def forget(self, instance: str) -> None:
        """`instance` is no more."""
        with self._lock:
            self._reasons.pop(instance, None)
            self._probes.pop(instance, None)
            self._own = "; ".join(self._reasons.values())
            self._all_probes = tuple(self._probes.values())

    def mark_healthy(self, instance: str) -> None:
        """`instance` can execute."""
        with self._lock:
            self._reasons.pop(instance, None)
            self._own = "; ".join(self._reasons.values())
