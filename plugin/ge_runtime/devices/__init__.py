"""Where memory comes from, and whether it is there: what all devices share; the host's memory.

A card's memory is in the room that knows the card.
"""

from ge_runtime.devices.memory import Buffer, Device, HostDevice, Watch, WatchedHost

__all__ = ["Buffer", "Device", "HostDevice", "Watch", "WatchedHost"]
