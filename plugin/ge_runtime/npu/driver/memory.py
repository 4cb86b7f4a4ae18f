"""A card's memory, pinned host memory, and slots: an engine's memory and operations on it.

Asynchronous copies require pinned memory. A slot has device memory for all tensors of an engine's
stages, allocated once. Each tensor name has one address: a stage reads a tensor where an earlier
stage wrote it, and an input of several stages is copied once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device
from ge_runtime.memory.lifetimes import Lifetime, Packing, pack
from ge_runtime.npu.driver.cann_values import AIPP_INPUT, GEAR_INPUT, DriverFault, FailureKind
from ge_runtime.npu.driver.device import AscendDevice, allocate
from ge_runtime.npu.driver.driver import Address, Copy, Dataset, ImageBatch, ModelId, Stream
from ge_runtime.npu.driver.om_model import LoadedModel, OmGear, Stage
from ge_runtime.npu.driver.pyacl import PyAclDriver

_NOWHERE: Final = Address(0)
QUEUED_ALIGNMENT: Final = 64
"""Alignment of both addresses of a queued copy, which CANN up to 8.1 documents."""
_GRANULE: Final = 32

_log = logging.getLogger(__name__)


def part_bytes(nbytes: int) -> int:
    """Return the size that a buffer of `nbytes` needs as part of a block.

    aclrtMalloc documents that it rounds up to 32 bytes and adds 32 more bytes. Operators may access
    this padding.
    """
    return -(-nbytes // _GRANULE) * _GRANULE + _GRANULE


class CardMemory(Device[Address]):
    """A card's memory. Buffers are addresses on the card, aligned to 64 bytes.

    The card reports the free memory, because other processes use the memory as well.
    """

    kind: ClassVar[str] = "npu"

    def __init__(self, device: AscendDevice) -> None:
        super().__init__(device.name, device.capacity_bytes)
        self._device = device

    def _available(self) -> int:
        with self._device.using():
            return self._device.driver.memory_info()[0]

    def _obtain(self, nbytes: int) -> Address:
        if nbytes == 0:  # malloc refuses it
            return _NOWHERE
        with self._device.using():
            return allocate(self._device.driver.malloc, nbytes)

    def _release(self, memory: Address) -> None:
        if memory != _NOWHERE and self._device.lost is None:
            with self._device.using():
                self._device.driver.free(memory)


class PinnedMemory(Device[NDArray[np.uint8]]):
    """Pinned host memory. Buffers are uint8 arrays [nbytes], aligned to 64 bytes.

    The memory of a freed buffer is released with its last view.
    """

    kind: ClassVar[str] = "npu"

    def __init__(self, device: AscendDevice) -> None:
        super().__init__(f"{device.name} (pinned)", None)
        self._device = device
        # Replaced and never modified: `holds` reads it in each execution without a lock.
        self._ranges: tuple[tuple[int, int], ...] = ()
        self._registered: dict[Address, NDArray[np.uint8]] = {}
        self.is_staging = False
        """True if memory could not be registered, which is then copied through pinned memory."""

    def holds(self, array: NDArray[Any]) -> bool:
        """Return whether a copy of the array can be queued: it is pinned and aligned."""
        start = array.ctypes.data
        end = start + array.nbytes
        return start % QUEUED_ALIGNMENT == 0 and any(
            first <= start and end <= last for first, last in self._ranges
        )

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Pin whole pages of existing memory until `unregister`, and keep them alive.

        If the memory cannot be pinned, each engine copies it through the engine's pinned memory.
        """
        address = Address(memory.ctypes.data)
        try:
            with self._device.using():
                self._device.driver.host_register(address, memory.nbytes)
        except DriverFault as fault:
            self.is_staging = True
            _log.warning("%s: not pinned, so each copy is made twice: %s", self.name, fault)
            return
        with self._lock:
            self._registered[address] = memory
            self._ranges = (*self._ranges, (address, address + memory.nbytes))

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """Undo `register`. No copy to or from the memory may be queued.

        Memory that cannot be unpinned is never freed.
        """
        address = Address(memory.ctypes.data)
        with self._lock:
            if address not in self._registered:
                return
            self._forget(address)  # first, so that no more copies of it are queued
        if self._device.lost is None:
            with self._device.using():
                self._device.driver.host_unregister(address)
        with self._lock:
            # Kept alive until here: memory that the driver has pinned must not be freed.
            self._registered.pop(address, None)

    def unregister_all(self) -> None:
        """Undo `register` for all registered memory. Safe to call twice."""
        for memory in [*self._registered.values()]:
            self.unregister(memory)

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        if nbytes == 0:  # malloc_host refuses it
            return np.empty(0, np.uint8)
        address = self._device.pin(nbytes)
        self._ranges = (*self._ranges, (address, address + nbytes))
        return np.asarray(_Pinned(address, nbytes, self._device.unpin_later))

    def _release(self, memory: NDArray[np.uint8]) -> None:
        """Forget the memory; it is freed with its last view."""
        self._forget(Address(memory.ctypes.data))

    def _forget(self, start: Address) -> None:
        self._ranges = tuple(own for own in self._ranges if own[0] != start)


class _Pinned:
    """The base object of all arrays in a block; frees it when the last array is collected."""

    __slots__ = ("__array_interface__", "_address", "_unpin")

    def __init__(self, address: Address, nbytes: int, unpin: Callable[[Address], None]) -> None:
        self._address = address
        self._unpin = unpin
        self.__array_interface__: dict[str, Any] = {
            "data": (int(address), False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._unpin(self._address)


class Transfer(NamedTuple):
    """A copy between the host and the device."""

    host: Address
    device: Address
    nbytes: int
    room: int
    """Size of the target in bytes."""
    queued: bool
    """True if a stream can copy, because the host memory is pinned; else copy synchronously."""


class CardExecution(NamedTuple):
    """One execution of a slot."""

    steps: Sequence[tuple[int, OmGear]]
    """(position of the stage, gear), in order of execution."""
    copies_in: Sequence[Transfer]
    copies_out: Sequence[Transfer]
    rows_in: Sequence[RowCopy] = ()
    """Copies into the slot, of rows that other models left on the device."""
    rows_out: Sequence[RowCopy] = ()
    """Copies out of the slot, of rows that stay on the device for other models."""


def slot_layout(models: Sequence[LoadedModel], kept: Collection[str]) -> Packing:
    """Plan the tensors of a chain of models in one block.

    Each tensor has the largest size that a stage needs at the stage's largest gear, and starts at a
    multiple of 64, like a block of malloc. Tensors that are never needed at the same time share
    memory.

    Args:
        models: The models of the stages, in order.
        kept: Tensors between stages that are needed after the last stage as well. Tensors that no
            stage consumes are always kept.
    """
    sizes = tensor_bytes(models)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for stage, model in enumerate(models):
        for name, _ in _inputs(stage, model):
            first.setdefault(name, 0)  # inputs are copied before the first stage
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
    """Map the name of each tensor to its bytes of device memory, as the models report them.

    The models' sizes include padding, and consider image formats.
    """
    sizes: dict[str, int] = {}
    for stage, model in enumerate(models):
        for name, nbytes in (*_inputs(stage, model), *_outputs(model)):
            sizes[name] = max(nbytes, sizes.get(name, 0))
    return sizes


class Slot:
    """Buffers at fixed addresses in one block, and the datasets that refer to them.

    Used by one execution at a time.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        packing: Packing,
        driver: PyAclDriver,
        memory: Device[Address],
        images: Mapping[int, ImageBatch] = MappingProxyType({}),
    ) -> None:
        """Allocate the slot.

        Args:
            stages: The stages of the engine.
            packing: The `slot_layout` of their models.
            driver: The driver.
            memory: The card's memory.
            images: Image batches of the stages with dynamic AIPP, by position of the stage.

        Raises:
            OutOfMemory: The card has not enough memory.
            DriverFault: A dataset could not be created.
        """
        self._stages = stages
        self._images = images
        self._images_set: dict[int, ModelId] = {}
        """Loaded models for which AIPP's parameters were set, by position of the stage."""
        self._driver = driver
        self._buffer = memory.allocate("device I/O", packing.peak)
        start = self._buffer.memory
        self.addresses = {name: Address(start + at) for name, at in packing.offsets.items()}
        """Addresses on the device by tensor name."""
        self._datasets: list[tuple[Dataset, Dataset]] = []
        with ExitStack() as undo:
            undo.callback(self._buffer.free)
            try:
                for number, stage in enumerate(stages):
                    inputs = self._dataset(_inputs(number, stage.model), undo)
                    outputs = self._dataset(_outputs(stage.model), undo)
                    self._datasets.append((inputs, outputs))
            except DriverFault as fault:
                if fault.kind is FailureKind.LOST:  # a lost card must not be called
                    undo.pop_all()
                raise
            undo.pop_all()

    def _dataset(self, tensors: Iterator[tuple[str, int]], undo: ExitStack) -> Dataset:
        buffers = [(self.addresses[name], nbytes) for name, nbytes in tensors]
        dataset = self._driver.create_dataset(buffers)
        undo.callback(self._driver.destroy_dataset, dataset)
        return dataset

    def files(self, execution: CardExecution) -> list[Path]:
        """Return the files of the stages that are executed."""
        return [self._stages[number].path for number, _ in execution.steps]

    def ensure_loaded(self, execution: CardExecution) -> None:
        """Raise EngineFault if one of the models to execute is not loaded."""
        for number, _ in execution.steps:
            self._stages[number].model.ensure_loaded()

    def copy_in(self, stream: Stream, execution: CardExecution) -> None:
        """Queue the copies to the card. The slot must be idle. Raises DriverFault."""
        driver = self._driver
        for host, device, nbytes, room, queued in execution.copies_in:
            if queued:
                driver.copy_async(device, room, host, nbytes, Copy.TO_DEVICE, stream)
            else:  # synchronous, before the tasks of the stream
                driver.copy(device, room, host, nbytes, Copy.TO_DEVICE)
        if can_be_queued(execution.rows_in):
            self._queue_rows(execution.rows_in, stream)
        else:  # synchronous: the rows were written before this execution began
            self._copy_rows(execution.rows_in)

    def compute(self, stream: Stream, execution: CardExecution) -> None:
        """Queue the stages. None of their models may be executing.

        Raises DriverFault, with the file of the stage that failed.
        """
        driver = self._driver
        try:
            # All gears are set before the first execution is queued, because the driver writes a
            # gear synchronously, outside of the stream, into the last input of the stage.
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
        """Set AIPP's parameters once for each load; the slot's buffer keeps them."""
        model = self._stages[number].model
        if self._images_set.get(number) == model.id:
            return
        inputs, _ = self._datasets[number]
        place = [tensor.name for tensor in model.description.inputs].index(AIPP_INPUT)
        self._driver.aipp.set_images(model.id, inputs, place, self._images[number])
        self._images_set[number] = model.id

    def copy_out(self, stream: Stream, execution: CardExecution) -> None:
        """Queue the copies of results; `collect` makes the copies that cannot be queued.

        Raises DriverFault.
        """
        for host, device, nbytes, room, queued in execution.copies_out:
            if queued:
                self._driver.copy_async(host, room, device, nbytes, Copy.TO_HOST, stream)
        if can_be_queued(execution.rows_out):
            self._queue_rows(execution.rows_out, stream)

    def collect(self, execution: CardExecution) -> None:
        """Make the copies that could not be queued. The stream must be done. Raises DriverFault."""
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
        """Free the slot, which must be idle. Call once."""
        for datasets in self._datasets:
            for dataset in datasets:
                self._driver.destroy_dataset(dataset)
        self._buffer.free()


def _inputs(number: int, model: LoadedModel) -> Iterator[tuple[str, int]]:
    """Yield the names and sizes of inputs. The names of gear and AIPP inputs contain the stage."""
    for tensor in model.description.inputs:
        is_private = tensor.name in (GEAR_INPUT, AIPP_INPUT)
        yield f"{tensor.name} of {number}" if is_private else tensor.name, tensor.nbytes


def _outputs(model: LoadedModel) -> Iterator[tuple[str, int]]:
    description = model.description
    for name, tensor in zip(description.output_names, description.outputs, strict=True):
        yield name, tensor.nbytes


# Copies of rows within a card. Rows that are adjacent in the source and in the target are one copy.
# A batch is padded with copies of its first rows; each copy doubles the number of rows.


class RowCopy(NamedTuple):
    """A copy of one row or several adjacent ones."""

    target: Address
    source: Address
    nbytes: int


def can_be_queued(copies: Sequence[RowCopy]) -> bool:
    """Return whether a stream can make all copies.

    If not, all copies are synchronous, so that their order is kept.
    """
    return not any(
        end % QUEUED_ALIGNMENT for target, source, _ in copies for end in (target, source)
    )


def gathering(places: Sequence[int], row_bytes: int, rows: int, slot: Address) -> list[RowCopy]:
    """Return the copies that gather rows into a slot.

    Args:
        places: Addresses of the rows, at least one.
        row_bytes: Size of a row.
        rows: Number of rows of the batch; if it is larger, copies of the first rows fill the batch.
        slot: Address of the tensor in the slot.
    """
    copies = [
        RowCopy(Address(slot + first * row_bytes), Address(places[first]), count * row_bytes)
        for first, count in _neighbours(places, row_bytes)
    ]
    filled = len(places)
    while filled < rows:
        count = min(filled, rows - filled)
        copies.append(RowCopy(Address(slot + filled * row_bytes), slot, count * row_bytes))
        filled += count
    return copies


def scattering(places: Sequence[int], row_bytes: int, slot: Address) -> list[RowCopy]:
    """Return the copies of a slot's first rows to the addresses `places`."""
    return [
        RowCopy(Address(places[first]), Address(slot + first * row_bytes), count * row_bytes)
        for first, count in _neighbours(places, row_bytes)
    ]


def _neighbours(places: Sequence[int], row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the index of the first row and the length of each run of adjacent rows."""
    first = 0
    for row in range(1, len(places) + 1):
        if row == len(places) or places[row] != places[row - 1] + row_bytes:
            yield first, row - first
            first = row
