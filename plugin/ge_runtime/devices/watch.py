"""How often somebody else's allocator asks a device for memory while nobody should."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ge_runtime.devices.host import HostDevice

_log = logging.getLogger(__name__)


class Watch:
    """Of one allocator, for the count of defects of a `Device`. Safe from any thread."""

    def __init__(self, name: str, allocations: Callable[[], int]) -> None:
        """name: the device. allocations: how often the allocator has asked so far."""
        self._name = name
        self._allocations = allocations
        self._before: int | None = None  # until all is warm
        self._told = False

    def begin(self) -> None:
        """All is warm: from now on each counts. Safe to call twice."""
        if self._before is None:
            self._before = self._allocations()

    def late(self) -> int:
        """How many there were since; the first are logged."""
        late = 0 if self._before is None else self._allocations() - self._before
        if late and not self._told:
            self._told = True
            _log.warning(
                "%s: torch's allocator asked for memory %d time(s) while serving, where all sizes "
                "were executed before; more are counted, not logged",
                self._name,
                late,
            )
        return late


class WatchedHost(HostDevice):
    """The host's memory, whose count of defects has those of a watched allocator as well."""

    def __init__(self, name: str, watch: Watch) -> None:
        """name: the device that batches and answers go to, and whose allocator is watched."""
        super().__init__(name)
        self._watch = watch

    def freeze(self) -> None:
        self._watch.begin()
        super().freeze()

    @property
    def allocations_after_freeze(self) -> int:
        return super().allocations_after_freeze + self._watch.late()
