"""Executions on a card: an engine's slot of device memory, and the stream executor that runs it.

A slot is what one engine owns on a card: device memory for all tensors of its stages, made once. A
tensor lies at one address, which is known by its name: what one stage writes a later one reads
there, and what several stages take is copied there once.

An executor is one stream, and one block of workspace for all models that execute on it. Models take
turns, so that the block is as large as the largest of them needs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ge_runtime.ascend.device import AscendDevice, DeviceContext
from ge_runtime.ascend.driver import GEAR_INPUT, Address, Copy, Dataset, Driver, Stream
from ge_runtime.ascend.executor_models import ExecutorModels
from ge_runtime.ascend.memory import part_bytes
from ge_runtime.ascend.om_model import LoadedModel, ModelFile, OmGear, Stage
from ge_runtime.ascend.return_codes import DriverFault, FailureKind
from ge_runtime.devices import Device
from ge_runtime.errors import EngineFault, OutOfMemory, RuntimeFault, shown
from ge_runtime.memory.lifetimes import Lifetime, Packing, pack

_log = logging.getLogger(__name__)


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
        self, stages: Sequence[Stage], packing: Packing, driver: Driver, memory: Device[Address]
    ) -> None:
        """packing: the `slot_layout` of the models. memory: of the card. Raises OutOfMemory."""
        self._stages = stages
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

    def submit(self, stream: Stream, execution: CardExecution) -> None:
        """Queue the stages between the copies. Raises DriverFault, with the file if it is one's.

        Nothing of the slot may be executing. What cannot be queued of the results is left to
        `collect`. Raises EngineFault, before anything is done, if one of them is not loaded.
        """
        for number, _ in execution.steps:
            self._stages[number].model.ensure_there()
        driver = self._driver
        for host, device, nbytes, room, queued in execution.copies_in:
            if queued:
                driver.copy_async(device, room, host, nbytes, Copy.TO_DEVICE, stream)
            else:  # at once, ahead of the stream
                driver.copy(device, room, host, nbytes, Copy.TO_DEVICE)
        try:
            # All gears before the first execution: they are written at once, outside the stream's
            # order, each into its stage's own buffer, the model's last input.
            for number, gear in execution.steps:
                if gear.setting is not None:
                    inputs, _ = self._datasets[number]
                    self._stages[number].model.set_gear(driver, inputs, gear.setting)
            for number, _ in execution.steps:
                model = self._stages[number].model
                driver.execute_async(model.id, *self._datasets[number], stream)
        except DriverFault as fault:
            fault.path = self._stages[number].path
            raise
        for host, device, nbytes, room, queued in execution.copies_out:
            if queued:
                driver.copy_async(host, room, device, nbytes, Copy.TO_HOST, stream)

    def collect(self, execution: CardExecution) -> None:
        """The copies that could not be queued, once the stream is done. Raises DriverFault."""
        for host, device, nbytes, room, queued in execution.copies_out:
            if not queued:
                self._driver.copy(host, room, device, nbytes, Copy.TO_HOST)

    def close(self) -> None:
        """Free all of it; nothing of it may be executing. Once."""
        for datasets in self._datasets:
            for dataset in datasets:
                self._driver.destroy_dataset(dataset)
        self._buffer.free()


def _inputs(number: int, model: LoadedModel) -> Iterator[tuple[str, int]]:
    """Tensors' names, and the bytes that the model wants for each; the gear is this stage's own."""
    for tensor in model.description.inputs:
        is_gear = tensor.name == GEAR_INPUT
        yield f"{tensor.name} of {number}" if is_gear else tensor.name, tensor.nbytes


def _outputs(model: LoadedModel) -> Iterator[tuple[str, int]]:
    description = model.description
    for name, tensor in zip(description.output_names, description.outputs, strict=True):
        yield name, tensor.nbytes


class StreamExecutor:
    """A stream of a card, and the models that execute there.

    Executions come from any thread. Loading and closing are the card's, while it is exclusive.
    """

    def __init__(self, device: AscendDevice, models: ExecutorModels) -> None:
        """models: of this executor alone; none is loaded yet. Raises DriverFault or EngineLost."""
        self.models = models
        self._device = device
        self._failure: str | None = None
        """The model whose execution failed, and of what, until the executor is reset."""
        self._open_stream()
        self.turn = device.add_turn()
        """Held for each execution, and by whoever changes what is loaded."""

    # -- executions --

    def execute(self, slot: Slot, execution: CardExecution) -> None:
        """Copy in, execute the stages, copy out; returns when all is done.

        Blocks until it is this execution's turn; other threads run while it waits.
        Raises EngineFault, OutOfMemory, or EngineLost once the card is lost. A queue that is full
        is tried once more. After a failed execution the executor is reset before the next.
        """
        while True:
            self._device.take(self.turn, f"the turn of {self.models.name}")
            try:
                self._device.ensure_there()
                if self._failure is None:
                    try:
                        self._execute(slot, execution)
                    except DriverFault as fault:
                        raise self._fault_of(fault, slot.files(execution)) from fault
                    return
            finally:
                self.turn.release()
            # Without the turn: `exclusive` takes those of all executors.
            self._recover()

    def _execute(self, slot: Slot, execution: CardExecution) -> None:
        # A turn ends with the wait for all that it queued: the driver tells of a failed task at
        # the next wait for its stream, once, and not which task it was. So it is of this execution.
        self._context.enter()
        for last in (False, True):
            try:
                slot.submit(self._stream, execution)
                break
            except DriverFault as fault:
                if fault.kind is FailureKind.LOST:
                    raise
                self._device.wait(self._stream)  # what was queued before still uses the slot
                if last or fault.kind is not FailureKind.RETRY:
                    raise
        self._device.wait(self._stream)
        slot.collect(execution)  # copies that no stream orders: only now are results there

    def _fault_of(self, fault: DriverFault, files: Sequence[Path]) -> RuntimeFault:
        """files: those that were executed; which of them failed, only their own calls tell."""
        model = shown(*([fault.path] if fault.path else files))
        text = f"{self.models.name}: {model}: {fault}"
        if fault.kind is FailureKind.LOST:
            return self._device.lose(text)
        if fault.kind is FailureKind.MEMORY:
            return OutOfMemory(text)
        if fault.kind is FailureKind.RELOAD:
            self._failure = f"{model}: {fault}"
        return EngineFault(text)

    def _recover(self) -> None:
        """Reset it, unless another thread has. Raises EngineLost."""
        with self._device.exclusive():
            self._device.ensure_there()
            self.reset_if_failed()

    # -- what is loaded: in `AscendDevice.exclusive` --

    def load(self, files: Sequence[ModelFile]) -> list[Stage]:
        self._context.enter()
        return self.models.load(files)

    def unload(self, stage: Stage) -> None:
        """Of a card that is lost nothing is called."""
        if self._device.lost is None:
            self._context.enter()
        self.models.unload(stage)

    def reset_if_failed(self) -> None:
        """After a failed execution: a new context and stream, and the models loaded again.

        See `ExecutorModels.load_all`. Raises EngineLost: without them the card counts as lost.
        """
        if self._failure is None:
            return
        name = self.models.name
        _log.warning("%s: made anew after a failed execution of %s", name, self._failure)
        try:
            self._context.enter()
            self.models.unload_all()
            self._close_stream()
            self._open_stream()
            self.models.load_all()
        except DriverFault as fault:
            raise self._device.lose(f"{self._device.name}: it cannot be mended: {fault}") from fault
        self._failure = None

    def close(self) -> None:
        """Free it, with no model left in it. Once. Each execution has waited for its end."""
        if self._device.lost is None:
            self._context.enter()
            self._close_stream()
        self.models.free()

    def _open_stream(self) -> None:
        self._context = DeviceContext(self._device.driver, self._device.number)
        try:
            with self._device.noticing_loss():
                self._stream = self._device.driver.create_stream()
        except DriverFault:
            self._context.destroy()
            raise

    def _close_stream(self) -> None:
        self._device.driver.destroy_stream(self._stream)
        self._context.destroy()

    def __repr__(self) -> str:
        return f"<{self.models.name}: {self.models}>"
