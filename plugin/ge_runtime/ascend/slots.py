"""What one engine owns on a card: device memory for all tensors of its stages, made once.

A tensor lies in one place, which is known by its name: what one stage writes a later one reads
there, and what several stages take is copied there once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.codes import Kind
from ge_runtime.ascend.description import GEAR_INPUT
from ge_runtime.ascend.driver import Address, Copy, Dataset, Driver, Stream
from ge_runtime.ascend.om_model import Gear, LoadedModel, Stage
from ge_runtime.devices import Device
from ge_runtime.memory.lifetimes import Lifetime, Packing, pack

_GRANULE: Final = 32


class Transfer(NamedTuple):
    """A copy between the host and the device."""

    host: Address
    device: Address
    nbytes: int
    queued: bool
    """Whether the host's end is pinned and a stream can do it; else it is done at once."""


class Execution(NamedTuple):
    """What a slot is to do."""

    steps: Sequence[tuple[int, Gear]]
    """The stages to execute, by position, in order, each at its gear."""
    copies_in: Sequence[Transfer]
    copies_out: Sequence[Transfer]


def layout(models: Sequence[LoadedModel], kept: Collection[str]) -> Packing:
    """Where the tensors of a chain of these models lie in one block, by name.

    Each is as large as the largest gear needs of any stage. A part of a block that operators use
    takes its bytes rounded up to 32, and 32 more, and starts at a multiple of 64: what malloc
    itself does for a block. Tensors that no stage needs at the same time share bytes.
    kept: what stages take and is wanted in the end as well. What no stage takes is kept anyway.
    """
    sizes: dict[str, int] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for stage, model in enumerate(models):
        for name, nbytes in _inputs(stage, model):
            sizes[name] = max(nbytes, sizes.get(name, 0))
            first.setdefault(name, 0)  # copied before any stage begins
            last[name] = stage
        for name, nbytes in _outputs(model):
            sizes[name] = nbytes
            first[name] = stage
    end = len(models) - 1
    return pack(
        Lifetime(name, _taken(nbytes), first[name], end if name in kept else last.get(name, end))
        for name, nbytes in sizes.items()
    )


class Slot:
    """Buffers at fixed addresses, one block for all, and the datasets that name them.

    For one execution at a time.
    """

    def __init__(
        self, stages: Sequence[Stage], packing: Packing, driver: Driver, memory: Device[Address]
    ) -> None:
        """packing: the `layout` of the stages' models. memory: of the card. Raises OutOfMemory."""
        self._stages = stages
        self._driver = driver
        self._buffer = memory.allocate("device I/O", packing.peak)
        start = self._buffer.memory
        self.places = {name: Address(start + at) for name, at in packing.offsets.items()}
        """Tensor: its address on the device."""
        self._datasets: list[tuple[Dataset, Dataset]] = []
        with ExitStack() as undo:
            undo.callback(self._buffer.free)
            try:
                for number, stage in enumerate(stages):
                    given = self._dataset(_inputs(number, stage.model), undo)
                    wanted = self._dataset(_outputs(stage.model), undo)
                    self._datasets.append((given, wanted))
            except DriverFault as fault:
                if fault.kind is Kind.LOST:  # on that card nothing is given back
                    undo.pop_all()
                raise
            undo.pop_all()

    def _dataset(self, tensors: Iterator[tuple[str, int]], undo: ExitStack) -> Dataset:
        buffers = [(self.places[name], nbytes) for name, nbytes in tensors]
        dataset = self._driver.create_dataset(buffers)
        undo.callback(self._driver.destroy_dataset, dataset)
        return dataset

    def files(self, execution: Execution) -> list[Path]:
        """Those of the stages that are executed."""
        return [self._stages[number].path for number, _ in execution.steps]

    def submit(self, stream: Stream, execution: Execution) -> None:
        """Queue the stages between the copies. Raises DriverFault, with the file if it is one's.

        Nothing of the slot may be executing: gears, and what cannot be queued, are written at
        once, ahead of the stream. What cannot be queued of the results is left to `collect`.
        Raises EngineFault, before anything is done, if one of them is not loaded.
        """
        for number, _ in execution.steps:
            self._stages[number].model.ensure_there()
        driver = self._driver
        for host, device, nbytes, queued in execution.copies_in:
            if queued:
                driver.copy_async(device, host, nbytes, Copy.TO_DEVICE, stream)
            else:
                driver.copy(device, host, nbytes, Copy.TO_DEVICE)
        try:
            for number, gear in execution.steps:
                if gear.setting is not None:
                    inputs, _ = self._datasets[number]
                    model = self._stages[number].model
                    driver.set_gear(model.id, inputs, len(inputs.buffers) - 1, gear.setting)
            for number, _ in execution.steps:
                model = self._stages[number].model
                driver.execute_async(model.id, *self._datasets[number], stream)
        except DriverFault as fault:
            fault.path = self._stages[number].path
            raise
        for host, device, nbytes, queued in execution.copies_out:
            if queued:
                driver.copy_async(host, device, nbytes, Copy.TO_HOST, stream)

    def collect(self, execution: Execution) -> None:
        """The copies that could not be queued, once the stream is done. Raises DriverFault."""
        for host, device, nbytes, queued in execution.copies_out:
            if not queued:
                self._driver.copy(host, device, nbytes, Copy.TO_HOST)

    def close(self) -> None:
        """Free all of it; nothing of it may be executing. Once."""
        for datasets in self._datasets:
            for dataset in datasets:
                self._driver.destroy_dataset(dataset)
        self._buffer.free()


def _inputs(number: int, model: LoadedModel) -> Iterator[tuple[str, int]]:
    """Names of places, and the bytes that the model wants there; the gear is this stage's own."""
    for tensor in model.description.inputs:
        is_gear = tensor.name == GEAR_INPUT
        yield f"{tensor.name} of {number}" if is_gear else tensor.name, tensor.nbytes


def _outputs(model: LoadedModel) -> Iterator[tuple[str, int]]:
    description = model.description
    for name, tensor in zip(description.output_names, description.outputs, strict=True):
        yield name, tensor.nbytes


def _taken(nbytes: int) -> int:
    return -(-nbytes // _GRANULE) * _GRANULE + _GRANULE
