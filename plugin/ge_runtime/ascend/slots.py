"""What one engine owns on a card: device memory for inputs, outputs and the gear, made once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ge_runtime.ascend.driver import Address, Copy, Driver, Stream
from ge_runtime.ascend.om_model import Gear, LoadedModel
from ge_runtime.devices import Device

_ALIGNMENT: Final = 64
_GRANULE: Final = 32


class Transfer(NamedTuple):
    """A copy between the host and the device."""

    host: Address
    device: Address
    nbytes: int
    queued: bool
    """Whether the host's end is pinned and a stream can do it; else it is done at once."""


def layout(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Where buffers of these bytes begin in one block, and the bytes of the block.

    A part of a block that operators use takes its bytes rounded up to 32, and 32 more, and starts
    at a multiple of 64: what malloc itself does for a block.
    """
    offsets, end = [], 0
    for nbytes in sizes:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        offsets.append(start)
        end = start + -(-nbytes // _GRANULE) * _GRANULE + _GRANULE
    return offsets, end


def slot_bytes(model: LoadedModel) -> int:
    """Bytes of device memory that a slot of this model takes."""
    description = model.description
    return layout(t.nbytes for t in (*description.inputs, *description.outputs))[1]


class Slot:
    """Buffers at fixed addresses, one block for all, and the datasets that name them.

    Each is as large as the model's largest gear needs. For one execution at a time.
    """

    def __init__(self, model: LoadedModel, driver: Driver, memory: Device[Address]) -> None:
        """memory: of the card. Raises OutOfMemory."""
        self.model = model
        self._driver = driver
        inputs, outputs = model.description.inputs, model.description.outputs
        offsets, nbytes = layout(tensor.nbytes for tensor in (*inputs, *outputs))
        self._buffer = memory.allocate("device I/O", nbytes)
        start = self._buffer.memory
        places = [Address(start + offset) for offset in offsets]
        self.inputs = places[: len(inputs)]
        """Device addresses in the model's order, the gear's last."""
        self.outputs = places[len(inputs) :]
        self._input_set = driver.create_dataset(
            [(place, t.nbytes) for place, t in zip(self.inputs, inputs, strict=True)]
        )
        self._output_set = driver.create_dataset(
            [(place, t.nbytes) for place, t in zip(self.outputs, outputs, strict=True)]
        )

    def submit(
        self,
        stream: Stream,
        gear: Gear,
        copies_in: Sequence[Transfer],
        copies_out: Sequence[Transfer],
    ) -> None:
        """Queue an execution at this gear between its copies. Raises DriverFault.

        Nothing of the slot may be executing: the gear, and what cannot be queued, are written at
        once, ahead of the stream. What cannot be queued of the results is left to `collect`.
        """
        driver = self._driver
        for host, device, nbytes, queued in copies_in:
            if queued:
                driver.copy_async(device, host, nbytes, Copy.TO_DEVICE, stream)
            else:
                driver.copy(device, host, nbytes, Copy.TO_DEVICE)
        if gear.setting is not None:
            driver.set_gear(self.model.id, self._input_set, len(self.inputs) - 1, gear.setting)
        driver.execute_async(self.model.id, self._input_set, self._output_set, stream)
        for host, device, nbytes, queued in copies_out:
            if queued:
                driver.copy_async(host, device, nbytes, Copy.TO_HOST, stream)

    def collect(self, copies_out: Sequence[Transfer]) -> None:
        """The copies that could not be queued, once the stream is done. Raises DriverFault."""
        for host, device, nbytes, queued in copies_out:
            if not queued:
                self._driver.copy(host, device, nbytes, Copy.TO_HOST)

    def close(self) -> None:
        """Free all of it; nothing of it may be executing. Once."""
        self._driver.destroy_dataset(self._input_set)
        self._driver.destroy_dataset(self._output_set)
        self._buffer.free()
