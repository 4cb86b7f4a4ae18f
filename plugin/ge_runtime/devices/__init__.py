"""Devices: the base classes of device memory, device health, and the host's memory.

The memory of accelerators is in their packages, `npu` and `cuda`.
"""

from ge_runtime.devices.memory import Buffer, Device, HostDevice, Watch, WatchedHost

__all__ = ["Buffer", "Device", "HostDevice", "Watch", "WatchedHost"]
