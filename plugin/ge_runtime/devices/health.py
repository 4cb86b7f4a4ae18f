"""The health of devices: whether one is lost, for all of this process that use it."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from ge_runtime.errors import EngineLost, RuntimeFault

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


class Accelerator(Protocol):
    """A device as engines see it whose library reaches it by itself."""

    @property
    def name(self) -> str:
        """As config.pbtxt has it, e.g. "cuda:0"."""

    @property
    def index(self) -> int:
        """Its number, for libraries."""

    @property
    def health(self) -> DeviceHealth:
        """Shared by all who use the device."""

    def fault(self, text: str, *, short: bool) -> RuntimeFault:
        """What a failed execution means: EngineLost, OutOfMemory or EngineFault.

        text: what the library said. short: whether that was of memory.
        """
