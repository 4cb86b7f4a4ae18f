"""Slots: what an engine owns on a card, and what an execution does with it.

A slot is device memory for all tensors of an engine's stages, made once. A tensor lies at one
address, which is known by its name: what one stage writes a later one reads there, and what several
stages take is copied there once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ge_runtime.devices import Device
from ge_runtime.memory.lifetimes import Lifetime, Packing, pack
from ge_runtime.npu.driver.description import AIPP_INPUT, GEAR_INPUT
from ge_runtime.npu.driver.driver import Address, Copy, Dataset, Driver, ImageBatch, ModelId, Stream
from ge_runtime.npu.driver.memory import part_bytes
from ge_runtime.npu.driver.om_model import LoadedModel, OmGear, Stage
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind
from ge_runtime.npu.driver.row_copies import RowCopy, can_be_queued


class Transfer(NamedTuple):
    """A copy between the host and the device."""

    host: Address
    device: Address
    nbytes: int
    room: int
    """Bytes at the end that is written."""
    queued: bool
    """Whether the host's end is pinned and a stream can do it; else it is done at once."""


class CardExecution(NamedTuple):
    """What a slot is to do."""

    steps: Sequence[tuple[int, OmGear]]
    """The stages to execute, by position, in order, each at its gear."""
    copies_in: Sequence[Transfer]
    copies_out: Sequence[Transfer]
    rows_in: Sequence[RowCopy] = ()
    """From where other models left them."""
    rows_out: Sequence[RowCopy] = ()
    """To where other models find them."""


def slot_layout(models: Sequence[LoadedModel], kept: Collection[str]) -> Packing:
    """Where the tensors of a chain of these models lie in one block, by name.

    Each is as large as the largest gear needs of any stage, and starts at a multiple of 64, as
    malloc's blocks do. Tensors that no stage needs at the same time share bytes.
    kept: what stages take and is wanted in the end as well. What no stage takes is kept anyway.
    """
    sizes = tensor_bytes(models)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for stage, model in enumerate(models):
        for name, _ in _inputs(stage, model):
            first.setdefault(name, 0)  # copied before any stage begins
            last[name] = stage
        for name, _ in _outputs(model):
            first[name] = stage
    end = len(models) - 1
    return pack(
        Lifetime(
            name, part_bytes(nbytes), first[name], end if name in kept else last.get(name, end)
        )
        for name, nbytes in sizes.items()
    )


def tensor_bytes(models: Sequence[LoadedModel]) -> dict[str, int]:
    """Bytes of device memory of each tensor of a chain, by name.

    As the models say, which know of padding and of formats of images.
    """
    sizes: dict[str, int] = {}
    for stage, model in enumerate(models):
        for name, nbytes in (*_inputs(stage, model), *_outputs(model)):
            sizes[name] = max(nbytes, sizes.get(name, 0))
    return sizes


class Slot:
    """Buffers at fixed addresses, one block for all, and the datasets that name them.

    For one execution at a time.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        packing: Packing,
        driver: Driver,
        memory: Device[Address],
        images: Mapping[int, ImageBatch] = MappingProxyType({}),
    ) -> None:
        """packing: the `slot_layout` of the models. memory: of the card. Raises OutOfMemory.

        images: of the stages that are told with executions what becomes of theirs.
        """
        self._stages = stages
        self._images = images
        self._images_set: dict[int, ModelId] = {}
        """Stage: the load of its model that was told."""
        self._driver = driver
        self._buffer = memory.allocate("device I/O", packing.peak)
        start = self._buffer.memory
        self.addresses = {name: Address(start + at) for name, at in packing.offsets.items()}
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
                if fault.kind is FailureKind.LOST:  # on that card nothing is given back
                    undo.pop_all()
                raise
            undo.pop_all()

    def _dataset(self, tensors: Iterator[tuple[str, int]], undo: ExitStack) -> Dataset:
        buffers = [(self.addresses[name], nbytes) for name, nbytes in tensors]
        dataset = self._driver.create_dataset(buffers)
        undo.callback(self._driver.destroy_dataset, dataset)
        return dataset

    def files(self, execution: CardExecution) -> list[Path]:
        """Those of the stages that are executed."""
        return [self._stages[number].path for number, _ in execution.steps]

    def ensure_there(self, execution: CardExecution) -> None:
        """Raises EngineFault if one of its models is not loaded."""
        for number, _ in execution.steps:
            self._stages[number].model.ensure_there()

    def copy_in(self, stream: Stream, execution: CardExecution) -> None:
        """Queue the copies to the card. Raises DriverFault. Nothing of the slot is executing."""
        driver = self._driver
        for host, device, nbytes, room, queued in execution.copies_in:
            if queued:
                driver.copy_async(device, room, host, nbytes, Copy.TO_DEVICE, stream)
            else:  # at once, ahead of the stream
                driver.copy(device, room, host, nbytes, Copy.TO_DEVICE)
        if can_be_queued(execution.rows_in):
            self._queue_rows(execution.rows_in, stream)
        else:  # at once: they were left there before this execution began
            self._copy_rows(execution.rows_in)

    def compute(self, stream: Stream, execution: CardExecution) -> None:
        """Queue the stages. Raises DriverFault with the file of the one that it is about.

        None of these models may be executing anywhere.
        """
        driver = self._driver
        try:
            # All gears before the first execution: they are written at once, outside the stream's
            # order, each into its stage's own buffer, the model's last input.
            for number, gear in execution.steps:
                if number in self._images:
                    self._set_images(number)
                if gear.setting is not None:
                    inputs, _ = self._datasets[number]
                    self._stages[number].model.set_gear(driver, inputs, gear.setting)
            for number, _ in execution.steps:
                model = self._stages[number].model
                driver.execute_async(model.id, *self._datasets[number], stream)
        except DriverFault as fault:
            fault.path = self._stages[number].path
            raise

    def _set_images(self, number: int) -> None:
        """Once: the parameters are in the slot's own buffer, and stay there."""
        model = self._stages[number].model
        if self._images_set.get(number) == model.id:
            return
        inputs, _ = self._datasets[number]
        place = [tensor.name for tensor in model.description.inputs].index(AIPP_INPUT)
        self._driver.aipp.set_images(model.id, inputs, place, self._images[number])
        self._images_set[number] = model.id

    def copy_out(self, stream: Stream, execution: CardExecution) -> None:
        """Queue the copies of results. Raises DriverFault. Others are left to `collect`."""
        for host, device, nbytes, room, queued in execution.copies_out:
            if queued:
                self._driver.copy_async(host, room, device, nbytes, Copy.TO_HOST, stream)
        if can_be_queued(execution.rows_out):
            self._queue_rows(execution.rows_out, stream)

    def collect(self, execution: CardExecution) -> None:
        """The copies that could not be queued, once the stream is done. Raises DriverFault."""
        for host, device, nbytes, room, queued in execution.copies_out:
            if not queued:
                self._driver.copy(host, room, device, nbytes, Copy.TO_HOST)
        if not can_be_queued(execution.rows_out):
            self._copy_rows(execution.rows_out)

    def _queue_rows(self, rows: Sequence[RowCopy], stream: Stream) -> None:
        copy = self._driver.copy_async
        for target, source, nbytes in rows:
            copy(target, nbytes, source, nbytes, Copy.ON_DEVICE, stream)

    def _copy_rows(self, rows: Sequence[RowCopy]) -> None:
        for target, source, nbytes in rows:
            self._driver.copy(target, nbytes, source, nbytes, Copy.ON_DEVICE)

    def close(self) -> None:
        """Free all of it; nothing of it may be executing. Once."""
        for datasets in self._datasets:
            for dataset in datasets:
                self._driver.destroy_dataset(dataset)
        self._buffer.free()


def _inputs(number: int, model: LoadedModel) -> Iterator[tuple[str, int]]:
    """Tensors' names, and the bytes that the model wants; hidden ones are this stage's own."""
    for tensor in model.description.inputs:
        is_own = tensor.name in (GEAR_INPUT, AIPP_INPUT)
        yield f"{tensor.name} of {number}" if is_own else tensor.name, tensor.nbytes


def _outputs(model: LoadedModel) -> Iterator[tuple[str, int]]:
    description = model.description
    for name, tensor in zip(description.output_names, description.outputs, strict=True):
        yield name, tensor.nbytes
