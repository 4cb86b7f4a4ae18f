"""What all devices share: the base of their memory and their health; and the host's memory.

An accelerator's memory is in the package that knows it: `ascend`, `cuda`.
"""

from ge_runtime.devices.memory import Buffer, Device, HostDevice, Watch, WatchedHost

__all__ = ["Buffer", "Device", "HostDevice", "Watch", "WatchedHost"]
