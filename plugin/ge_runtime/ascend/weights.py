"""The weights on a card: one block for each content of a file, whichever lanes execute it."""

from __future__ import annotations

from dataclasses import dataclass

from ge_runtime.ascend.driver import Address
from ge_runtime.ascend.om_model import ModelFile
from ge_runtime.devices import Buffer, Device


@dataclass(slots=True)
class _Shared:
    buffer: Buffer[Address]
    users: int


class SharedWeights:
    """Used while nothing executes on the card."""

    def __init__(self, memory: Device[Address]) -> None:
        """memory: of the card."""
        self._memory = memory
        self._shared: dict[str, _Shared] = {}  # by digest

    def has(self, file: ModelFile) -> bool:
        """Whether some lane has the file's weights already."""
        return file.digest in self._shared

    def share(self, file: ModelFile) -> Buffer[Address]:
        """The block for this file's weights, until `leave`. Raises OutOfMemory or DriverFault."""
        shared = self._shared.get(file.digest)
        if shared is None:
            # A block of 0 bytes has no address, and without one the driver allocates its own.
            buffer = self._memory.allocate("weights", max(1, file.weights_bytes))
            shared = self._shared[file.digest] = _Shared(buffer, 0)
        shared.users += 1
        return shared.buffer

    def leave(self, digest: str) -> None:
        """A lane has unloaded the model; the last one frees them."""
        shared = self._shared[digest]
        shared.users -= 1
        if not shared.users:
            del self._shared[digest]
            shared.buffer.free()
