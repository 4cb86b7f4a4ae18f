"""The Ascend cards of a process, and the beginning and end of the driver with them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from typing import Final

from ge_runtime.ascend.card import Card
from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.driver import Driver
from ge_runtime.ascend.pyacl import open_driver
from ge_runtime.devices.health import DeviceHealth

_log = logging.getLogger(__name__)


class Cards:
    """The cards of a process, each opened by the first who uses it. Safe from any thread."""

    def __init__(self, driver: Callable[[], Driver] = open_driver) -> None:
        self._open_driver = driver
        self._lock = Lock()
        self._open: dict[int, Card] = {}
        self._healths: dict[int, DeviceHealth] = {}
        self._users: dict[int, int] = {}
        self._initialized = False
        """Whether it was us who called acl.init, and must call acl.finalize."""

    def health(self, device: int) -> DeviceHealth:
        """Whether that card is there; whether or not anybody has it open."""
        return self._healths.setdefault(device, DeviceHealth())

    def acquire(self, device: int) -> Card:
        """The card, for one more user, until `release`.

        Raises NoDevice where there is no driver, DriverFault if the device cannot be had, and
        EngineLost if it was lost before.
        """
        health = self.health(device)
        health.ensure_there()
        with self._lock:
            if device not in self._open:
                driver = self._open_driver()
                if not self._open:
                    self._initialized = driver.init()
                try:
                    self._open[device] = Card(driver, device, health)
                except BaseException:
                    self._finalize_if_last(driver)
                    raise
            self._users[device] = self._users.get(device, 0) + 1
            return self._open[device]

    def release(self, card: Card) -> None:
        """One user less; the last one closes the card, and that of all cards ends the driver."""
        with self._lock:
            self._users[card.device] -= 1
            if self._users[card.device] == 0 and card.close():
                del self._open[card.device]
                self._finalize_if_last(card.driver)

    def _finalize_if_last(self, driver: Driver) -> None:
        if not self._open and self._initialized:
            self._initialized = False
            try:
                driver.finalize()
            except DriverFault as fault:
                _log.warning("the driver does not end as it should: %s", fault)


PROCESS_CARDS: Final = Cards()
"""The cards of this process."""
