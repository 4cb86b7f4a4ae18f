"""The health of devices: whether a device is lost to this process."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from ge_runtime.errors import EngineLost, RuntimeFault

_CURE: Final = "the process has to be restarted, which a device service does by itself"

_log = logging.getLogger(__name__)


class DeviceHealth:
    """The health of one device, shared by all its users in the process. Thread-safe.

    After a user has called `mark_lost`, no user may call the device any more.
    """

    def __init__(self) -> None:
        self.lost: EngineLost | None = None
        """Why the device is lost; None while it is available. Do not raise this object itself."""

    def ensure_available(self) -> None:
        """Raise EngineLost if the device is lost."""
        if self.lost is not None:
            raise EngineLost(str(self.lost))

    def mark_lost(self, text: str) -> EngineLost:
        """Mark the device as lost for the rest of the process.

        Later calls do not change the reason, because later failures follow from the first.

        Args:
            text: The reason.

        Returns:
            A new error for the caller to raise, with the reason and the fix.
        """
        if self.lost is None:
            self.lost = EngineLost(f"{text}; {_CURE}")
            _log.error("%s", self.lost)
        return EngineLost(str(self.lost))


class Accelerator(Protocol):
    """A device for engines whose library accesses the device itself."""

    @property
    def name(self) -> str:
        """The device's name in config.pbtxt, e.g. "cuda:0"."""

    @property
    def index(self) -> int:
        """The device's number, for libraries."""

    @property
    def health(self) -> DeviceHealth:
        """The device's health, shared by all its users."""

    def fault(self, text: str, *, no_memory: bool) -> RuntimeFault:
        """Return the fault of a failed execution.

        Args:
            text: The library's message.
            no_memory: Whether the library reported a failed allocation.

        Returns:
            EngineLost if the device is lost, else OutOfMemory or EngineFault.
        """
