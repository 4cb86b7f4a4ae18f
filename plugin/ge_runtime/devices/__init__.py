"""Where memory comes from, and whether it is there: what all devices share; the host's memory.

A card's memory is in the room that knows the card.
"""

from ge_runtime.devices.base import Buffer, Device
from ge_runtime.devices.host import HostDevice
from ge_runtime.devices.watch import Watch, WatchedHost

__all__ = ["Buffer", "Device", "HostDevice", "Watch", "WatchedHost"]
