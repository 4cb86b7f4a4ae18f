"""Where memory comes from: the bookkeeping that all devices share, and the host's memory.

A card's memory is in the room that knows the card.
"""

from ge_runtime.devices.base import Buffer, Device
from ge_runtime.devices.host import HostDevice

__all__ = ["Buffer", "Device", "HostDevice"]
