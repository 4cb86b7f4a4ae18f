"""The shared memory operations, once for all frontends. Any thread may call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reference_server.core.errors import invalid_arg
from reference_server.core.metadata import CudaRegion, SystemRegion
from reference_server.shared_memory.cuda import CudaMemory, CudaPython, Driver
from reference_server.shared_memory.manager import RegionLease, RegionManager
from reference_server.shared_memory.region import SystemMemory

__all__ = ["RegionLease", "SharedMemory"]

#: Objects of these names belong to a Triton server and its models, not to clients.
_RESERVED_PREFIX = "triton_python_backend_shm_region_"


class SharedMemory:
    """What a client can ask about regions; an empty name stands for all of a kind.

    `load_driver` is called when a CUDA region is registered; it raises DriverError where there is
    none.
    """

    def __init__(self, load_driver: Callable[[], Driver] = CudaPython) -> None:
        self._manager = RegionManager()
        self._load_driver = load_driver

    def system_status(self, name: str = "") -> Sequence[SystemRegion]:
        """The system regions in the order of their names. Raises ServerError NOT_FOUND."""
        return self._manager.regions(SystemRegion, name)

    def system_register(self, name: str, key: str, byte_size: int, offset: int = 0) -> None:
        """Map `byte_size` bytes from `offset` on of the object `key` as the region `name`.

        Raises ServerError ALREADY_EXISTS, INVALID_ARG, or INTERNAL if there is no such object.
        """
        if key.lstrip("/").startswith(_RESERVED_PREFIX):
            raise invalid_arg(
                f"cannot register shared memory region '{name}' with key '{key}' as the key "
                f"contains the reserved prefix '{_RESERVED_PREFIX}'"
            )
        region = SystemRegion(name, key, offset, byte_size)
        self._manager.register(region, lambda: SystemMemory(region))

    def system_unregister(self, name: str = "") -> None:
        """Forget a region, or all; unknown names do not matter. Raises ServerError if in use."""
        self._manager.unregister(SystemRegion, name)

    def cuda_status(self, name: str = "") -> Sequence[CudaRegion]:
        """The CUDA regions in the order of their names. Raises ServerError NOT_FOUND."""
        return self._manager.regions(CudaRegion, name)

    def cuda_register(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Open the allocation behind a `cudaIpcMemHandle_t` as the region `name`.

        Raises ServerError ALREADY_EXISTS, or INVALID_ARG if it cannot be opened.
        """
        region = CudaRegion(name, device_id, byte_size)
        self._manager.register(region, lambda: CudaMemory(region, raw_handle, self._load_driver))

    def cuda_unregister(self, name: str = "") -> None:
        """Forget a region, or all; unknown names do not matter. Raises ServerError if in use."""
        self._manager.unregister(CudaRegion, name)

    def lease(self) -> RegionLease:
        """The regions for one request, which releases them when it is answered."""
        return self._manager.lease()

    def close(self) -> None:
        """Let go of all regions."""
        self._manager.close()
