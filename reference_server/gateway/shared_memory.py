"""The shared memory operations: register, read and unregister regions, and lease them to requests.

System and CUDA regions share one name space.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reference_server.core.errors import (
    Code,
    ServerError,
    internal,
    invalid_arg,
    not_found,
    unsupported,
)
from reference_server.core.metadata import CudaRegion, SystemRegion
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.shared_memory.cuda import CudaMemory, CudaPython, Driver
from reference_server.shared_memory.region import InputBuffers, Memory, SystemMemory

_R = TypeVar("_R", SystemRegion, CudaRegion)

_MAX_UINT64 = 2**64 - 1
#: Objects with this prefix belong to a Triton server and its models, not to clients.
_RESERVED_PREFIX = "triton_python_backend_shm_region_"
#: The name of each type of region in Triton's error texts: first in the texts about regions that
#: are not found or still used, then in the text about a region of the wrong type.
_KINDS = {SystemRegion: ("system", "system"), CudaRegion: ("cuda", "CUDA")}


@dataclass(slots=True, eq=False)
class _Entry:
    """A registered region; `users` is the number of unanswered requests that use it.

    A region that `is_unregistered` is removed with its last user.
    """

    region: SystemRegion | CudaRegion
    memory: Memory
    users: int = 0
    is_unregistered: bool = False


class SharedMemory:
    """The registered regions and their users. Any thread.

    Args:
        load_driver: Loads the CUDA driver when a CUDA region is registered. Raises DriverError if
            the machine has no driver.
        allowed: Whether clients may register and unregister regions. If not, both raise
            ServerError UNSUPPORTED.
        profile: The Triton release to imitate.
    """

    def __init__(
        self,
        load_driver: Callable[[], Driver] = CudaPython,
        *,
        allowed: bool = True,
        profile: TritonProfile = V2_51,
    ) -> None:
        self._profile = profile
        self._load_driver = load_driver
        self._allowed = allowed
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._buffers = InputBuffers()

    def release_buffers(self) -> None:
        """Free buffers that were not used for a while; to be called periodically."""
        self._buffers.release()

    def check_allowed(self) -> None:
        """Raise ServerError UNSUPPORTED if clients may not register shared memory."""
        if not self._allowed:
            raise unsupported(
                "Client shared memory is disabled. Start the server with "
                "'--allow-client-shm=true' to enable."
            )

    def register_system(self, name: str, key: str, byte_size: int, offset: int = 0) -> None:
        """Map `byte_size` bytes of the object `key`, from `offset` on, as the region `name`.

        Raises ServerError ALREADY_EXISTS, INVALID_ARG, or INTERNAL if the object does not exist.
        """
        self.check_allowed()
        if self._profile.newer_shared_memory and not key.strip("/"):
            raise invalid_arg(
                f"cannot register shared memory region '{name}' - invalid shm key '{key}'"
            )
        if key.lstrip("/").startswith(_RESERVED_PREFIX):
            raise invalid_arg(
                f"cannot register shared memory region '{name}' with key '{key}' as the key "
                f"contains the reserved prefix '{_RESERVED_PREFIX}'"
            )
        region = SystemRegion(name, key, offset, byte_size)
        self.register(region, lambda: SystemMemory(region, self._buffers))

    def register_cuda(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Open the allocation behind a `cudaIpcMemHandle_t` as the region `name`.

        Raises ServerError ALREADY_EXISTS, or INVALID_ARG if it cannot be opened.
        """
        region = CudaRegion(name, device_id, byte_size)
        self.register(region, lambda: CudaMemory(region, raw_handle, self._load_driver))

    def register(
        self, region: SystemRegion | CudaRegion, open_memory: Callable[[], Memory]
    ) -> None:
        """Register `region`, whose memory `open_memory` opens.

        Raises ServerError ALREADY_EXISTS for a name in use, and the errors of `open_memory`.
        """
        self.check_allowed()
        with self._lock:
            if region.name in self._entries:
                raise ServerError(
                    Code.ALREADY_EXISTS, f"shared memory region '{region.name}' already in manager"
                )
            # Under the lock: only one of two registrations of the same name may map memory.
            self._entries[region.name] = _Entry(region, open_memory())

    def regions(self, kind: type[_R], name: str = "") -> Sequence[_R]:
        """Return the region `name`, or all regions of this type sorted by name.

        Raises ServerError NOT_FOUND if no region of this type has the name.
        """
        with self._lock:
            found = [entry.region for entry in self._entries.values()]
        if name:
            found = [region for region in found if region.name == name]
            if not found:
                raise not_found(f"Unable to find {_KINDS[kind][0]} shared memory region: '{name}'")
            if not isinstance(found[0], kind):
                other, wanted = _KINDS[type(found[0])][1], _KINDS[kind][1]
                raise not_found(
                    f"The region named '{name}' is registered as {other} shared memory, not "
                    f"{wanted} shared memory"
                )
        return sorted(
            (region for region in found if isinstance(region, kind)), key=lambda region: region.name
        )

    def unregister(self, kind: type[_R], name: str = "") -> None:
        """Unregister the region `name`, or all regions of this type; unknown names are ignored.

        A region in use is removed with its last user. Without `newer_shared_memory`, it stays
        registered, and ServerError INTERNAL names it.
        """
        self.check_allowed()
        in_use: list[str] = []
        with self._lock:
            for found in [name] if name else sorted(self._entries):
                entry = self._entries.get(found)
                if entry is None or not isinstance(entry.region, kind):
                    continue
                if entry.users and self._profile.newer_shared_memory:
                    entry.is_unregistered = True
                elif entry.users:
                    in_use.append(found)
                else:
                    del self._entries[found]
                    entry.memory.close()
        if not in_use:
            return
        if name:
            raise internal(
                f"Cannot unregister shared memory region '{name}', it is currently in use."
            )
        listed = "".join(f"{found} ," for found in in_use)
        raise internal(
            f"Failed to unregister the following {_KINDS[kind][0]} shared memory regions: {listed}"
        )

    def lease(self) -> RegionLease:
        """Make the lease of one request."""
        return RegionLease(self)

    def close(self) -> None:
        """Close all regions; to be called when no request is in flight."""
        with self._lock:
            for entry in self._entries.values():
                entry.memory.close()
            self._entries.clear()

    def _acquire(self, name: str) -> _Entry:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                raise not_found(f"Unable to find shared memory region: '{name}'")
            entry.users += 1
            return entry

    def _release(self, entries: Sequence[_Entry]) -> None:
        with self._lock:
            for entry in entries:
                entry.users -= 1
                if entry.is_unregistered and not entry.users:
                    del self._entries[entry.region.name]
                    entry.memory.close()


class RegionLease:
    """The regions that one request uses; they stay open until `release`. One thread at a time."""

    __slots__ = ("_held", "_shared_memory")

    def __init__(self, shared_memory: SharedMemory) -> None:
        self._shared_memory = shared_memory
        self._held: dict[str, _Entry] = {}

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a copy of the data of an input. Raises ServerError NOT_FOUND, INVALID_ARG."""
        return self._memory(region, offset, byte_size).read(offset, byte_size)

    def output_buffer(self, region: str, offset: int, byte_size: int) -> RegionOutput:
        """Return the place of an output. Raises ServerError NOT_FOUND, INVALID_ARG."""
        return RegionOutput(self._memory(region, offset, byte_size), offset, byte_size)

    def release(self) -> None:
        """Release the regions, once the request is answered. May be called again."""
        if self._held:
            self._shared_memory._release(list(self._held.values()))
            self._held = {}

    def _memory(self, name: str, offset: int, byte_size: int) -> Memory:
        entry = self._held.get(name)
        if entry is None:
            entry = self._held[name] = self._shared_memory._acquire(name)
        size = entry.region.byte_size
        if not 0 <= offset < size:
            raise invalid_arg(f"Invalid offset for shared memory region: '{name}'")
        if self._shared_memory._profile.newer_shared_memory:
            if offset + byte_size > _MAX_UINT64:
                raise invalid_arg(
                    f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) "
                    f"exceeds maximum value ({_MAX_UINT64}) for region '{name}'"
                )
            if offset + byte_size > size:
                raise invalid_arg(f"Invalid offset + byte size for shared memory region: '{name}'")
            return entry.memory
        # An empty part at offset 0 is refused, too: the real server checks the last byte.
        if byte_size < 0 or not 0 < offset + byte_size <= size:
            raise invalid_arg(f"Invalid offset + byte size for shared memory region: '{name}'")
        return entry.memory


class RegionOutput:
    """The part of a region that one output is written to."""

    __slots__ = ("_memory", "_offset", "byte_size")

    def __init__(self, memory: Memory, offset: int, byte_size: int) -> None:
        self._memory = memory
        self._offset = offset
        self.byte_size = byte_size

    def write(self, data: memoryview) -> None:
        """Write `data`, at most `byte_size` bytes, to its start. Raises ServerError."""
        self._memory.write(self._offset, data)
