"""`PreferredMemory`: where a model wants the outputs of a model that it asks."""

from __future__ import annotations

from reference_server.backends.python_host.api.constants import MemoryType
from reference_server.backends.python_host.api.native import (
    MODULE,
    Native,
    given,
    incompatible_constructor,
)


class PreferredMemory(Native):
    """A kind of memory and the number of a device."""

    __slots__ = ("_device_id", "_memory_type")
    __module__ = MODULE

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType) or not isinstance(
            preferred_device_id, int
        ):
            raise incompatible_constructor(
                "PreferredMemory(preferred_memory_type: "
                "triton::backend::python::PreferredMemory::MemoryType, "
                "preferred_device_id: int = 0)",
                *given((preferred_memory_type, preferred_device_id), (0,)),
            )
        self._memory_type = preferred_memory_type
        self._device_id = preferred_device_id
