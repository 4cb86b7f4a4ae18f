"""What a card tells of itself, asked now and then: whether it is well, its memory, its load."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from ge_runtime.errors import EngineLost
from ge_runtime.npu.driver.device import AscendDevice
from ge_runtime.npu.driver.return_codes import DriverFault

INTERVAL_S: Final = 1.0
"""Each question holds up all Python threads for as long as the driver takes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """A card at one moment."""

    fault: str
    """Why it is not to be trusted with an execution; empty if it is well."""
    free_bytes: int = 0
    total_bytes: int = 0
    percent: Mapping[str, int] = field(default_factory=dict)
    """Unit of the chip: how busy it is, of those that the chip tells."""


class CardWatch:
    """Asks a card once in INTERVAL_S, at most. Safe from any thread."""

    def __init__(self, device: AscendDevice, clock: Callable[[], float] = time.monotonic) -> None:
        self._device = device
        self._clock = clock
        self._asking = Lock()
        self._asked_at: float | None = None
        self._last = Look("")

    def look(self) -> Look:
        """What it told last, or tells now. Never raises; who finds it lost says so."""
        # Others take the last answer while one thread asks.
        if self._asking.acquire(blocking=False):
            try:
                now = self._clock()
                if self._asked_at is None or now - self._asked_at >= INTERVAL_S:
                    self._asked_at = now
                    self._note(self._ask())
            finally:
                self._asking.release()
        lost = self._device.lost
        return self._last if lost is None else Look(str(lost))

    def _ask(self) -> Look:
        device = self._device
        try:
            with device.using():
                if not device.driver.is_well(device.number):
                    return Look(f"{device.name}: it says that it is abnormal")
                free, total = device.driver.memory_info()
                return Look("", free, total, device.driver.utilization(device.number))
        except (DriverFault, EngineLost) as fault:
            return Look(f"{device.name}: it does not answer as it should: {fault}")

    def _note(self, look: Look) -> None:
        if look.fault and not self._last.fault:
            _log.error("%s; its models are not ready", look.fault)
        elif self._last.fault and not look.fault:
            _log.warning("%s: it is well again", self._device.name)
        self._last = look
