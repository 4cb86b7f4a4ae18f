"""Where memory comes from. One file per kind of device, over the bookkeeping that all share.

`host` is the memory of this process, `null` a card that exists on paper only.
"""

from ge_runtime.devices.base import Buffer, Device
from ge_runtime.devices.host import HostDevice
from ge_runtime.devices.null import NullDevice

__all__ = ["Buffer", "Device", "HostDevice", "NullDevice"]
