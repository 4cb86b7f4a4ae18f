"""Whether a device is there: known to all of this process, whatever way they reach it."""

from __future__ import annotations

import logging
from typing import Final

from ge_runtime.errors import EngineLost

_CURE: Final = "the process has to be restarted, which a device service does by itself"

_log = logging.getLogger(__name__)


class DeviceHealth:
    """One for each device of the process that can be lost. Safe from any thread.

    Whoever finds it lost says so, and from then on nobody makes a call on it.
    """

    def __init__(self) -> None:
        self.lost: EngineLost | None = None
        """What it was lost of; None while it is there. Never raised itself: see `lose`."""

    def ensure_there(self) -> None:
        """Raises EngineLost if the device is lost."""
        if self.lost is not None:
            raise EngineLost(str(self.lost))

    def lose(self, text: str) -> EngineLost:
        """The device is lost, now and for the rest of the process; the error to raise.

        text: what it is lost of; the error tells the cure as well. What was found first counts: the
        rest follows from it.
        """
        if self.lost is None:
            self.lost = EngineLost(f"{text}; {_CURE}")
            _log.error("%s", self.lost)
        return EngineLost(str(self.lost))
