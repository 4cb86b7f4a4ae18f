"""The Ascend engine for .om files with free shapes: compiled by ATC for ranges, without gears.

All sizes within the ranges are executed without padding. Most of the memory is not planned, and an
execution blocks all Python threads of the process. Prefer gears; this engine is for graphs that do
not support them, e.g. because inner sizes depend on data.

The driver allocates weights at load, and workspace during executions. Inputs, and outputs with a
known maximum size, have fixed buffers. The driver allocates other outputs in each execution; they
are freed before the next execution.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Buffer, Device
from ge_runtime.engines.base import GraphTensor, Shapes, Signature
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory, PlanFault, RuntimeFault
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.npu.driver.cann_values import (
    ACL_DTYPES,
    DriverFault,
    FailureKind,
    ModelDescription,
    ModelTensor,
)
from ge_runtime.npu.driver.card import Card
from ge_runtime.npu.driver.device import AscendDevice
from ge_runtime.npu.driver.driver import Address, Copy, Dataset, ModelId, Produced
from ge_runtime.npu.driver.memory import part_bytes
from ge_runtime.npu.driver.om_model import ModelFile
from ge_runtime.npu.engines.om_files import load_fault, tensor_faults
from ge_runtime.specs import Array, Tensors


class OmFreeEngine:
    """A .om file that executes any shapes within the ranges that it was compiled for."""

    def __init__(self, card: Card, file: ModelFile, model: FreeModel) -> None:
        """Initialize the engine; called by `open`. `close` closes the model."""
        self._card = card
        self._file = file
        self._model = model
        self._closed = False
        description = model.description
        self._inputs = [tensor.name for tensor in description.data_inputs]
        self._outputs = {name: index for index, name in enumerate(description.output_names)}
        self._signature = Signature(
            tuple(_graph_tensor(t.name, t) for t in description.data_inputs),
            tuple(
                _graph_tensor(name, t)
                for name, t in zip(description.output_names, description.outputs, strict=True)
            ),
        )

    @classmethod
    def open(cls, file: ModelFile, card: Card, memory: Device[Address]) -> OmFreeEngine:
        """Load a file. After an error nothing stays loaded.

        Args:
            file: The file.
            card: The card.
            memory: The card's memory, for tensors of known size.

        Raises:
            ArtifactFault: The file cannot be executed.
            OutOfMemory: The card has not enough memory.
            EngineLost: The card is lost.
        """
        try:
            card.ensure_available()
            model = FreeModel(card, file.path, memory)
        except DriverFault as fault:
            raise load_fault(file.path, card, fault) from fault
        faults = list(tensor_faults(model.description))
        if faults:
            model.close()
            raise ArtifactFault("\n".join(f"{file.path}: {fault}" for fault in faults))
        return cls(card, file, model)

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def shapes(self) -> None:
        """None, which means any shapes; `bind` and `run` check the ranges."""

    @property
    def lost(self) -> bool:
        return self._card.lost is not None

    @property
    def compiles_each_shape(self) -> bool:
        """False: the file contains one program for all shapes."""
        return False

    @property
    def unplanned(self) -> tuple[str, ...]:
        outputs = [self._model.description.output_names[index] for index in self._model.unsized]
        return (
            f"{self._file.path.name} was compiled for ranges of sizes, not for gears: CANN "
            "allocates its weights at load, and its workspace in each execution",
            *(
                f"output '{name}': CANN allocates it on the card in each execution, and it is "
                "freed before the next execution"
                for name in outputs
            ),
            "an execution blocks all Python threads of the process",
        )

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Allocate the inputs on the card. Raises PlanFault for sizes outside of the ranges."""
        description, sizes = self._model.description, []
        for index, name in enumerate(self._inputs):
            each = [own[name] for own in largest]
            for dims in each:
                if not self._holds(index, dims):
                    raise PlanFault(
                        f"{self._file.path}: input '{name}': found sizes up to {list(dims)}, "
                        f"expected {self._range(index)}, which the file was compiled for: lower "
                        "the limits, or widen the range of `atc --input_shape`"
                    )
            sizes.append(max((bytes_at(description, index, dims) for dims in each), default=0))
        try:
            self._model.bind(sizes)
        except DriverFault as fault:
            raise load_fault(self._file.path, self._card, fault) from fault

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        arrays = [inputs[name] for name in self._inputs]
        for index, array in enumerate(arrays):
            if not self._holds(index, array.shape):
                raise EngineFault(
                    f"{self._file.path}: input '{self._inputs[index]}': found "
                    f"{list(array.shape)}, expected {self._range(index)}, which the file was "
                    "compiled for"
                )
        if not outputs:
            return {}
        wanted = {self._outputs[name]: array for name, array in outputs.items()}
        found = self._model.execute(arrays, wanted)
        return {name: found[self._outputs[name]] for name in outputs}

    @property
    def files(self) -> Sequence[Path]:
        return [self._file.path]

    def reload(self) -> None:
        """See `Reloadable.reload`. Raises DriverFault or EngineLost."""
        self._model.reload()

    def weights_bytes(self) -> int:
        """Return the bytes that CANN reports for weights."""
        return self._file.weights_bytes

    def device_io_bytes(self) -> None:
        """Return None: the size of the buffers depends on the limits in config.pbtxt."""

    def intermediates(self, shapes: Shapes) -> Intermediates:
        """Return no memory, because workspace is not planned."""
        return Intermediates(())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._card.releasing():
                self._model.close()

    def _holds(self, index: int, dims: Sequence[int]) -> bool:
        ranges = self._model.ranges[index]
        return len(dims) == len(ranges) and all(
            low <= dim and (high < 0 or dim <= high)
            for dim, (low, high) in zip(dims, ranges, strict=True)
        )

    def _range(self, index: int) -> str:
        """Return the ranges of an input in the format of `atc --input_shape`."""
        return ",".join(
            str(low) if low == high else "-1" if high < 0 and low <= 1 else f"{low}~{high}"
            for low, high in self._model.ranges[index]
        )


def _graph_tensor(name: str, tensor: ModelTensor) -> GraphTensor:
    dims = tuple(dim if dim >= 0 else None for dim in tensor.dims)
    return GraphTensor(name, ACL_DTYPES[tensor.dtype], dims)


_log = logging.getLogger(__name__)
_NOWHERE: Final = Address(0)


class FreeModel:
    """A loaded file, in its own context. Thread-safe; executes one batch at a time."""

    def __init__(self, device: AscendDevice, path: Path, memory: Device[Address]) -> None:
        """Load the file. Blocks until current executions are done.

        Args:
            device: The card.
            path: The .om file.
            memory: The card's memory, for tensors of known size.

        Raises:
            DriverFault: The file cannot be loaded.
            EngineLost: The card is lost.
        """
        self.path: Final = path
        self._device = device
        self._driver = device.driver
        self._memory = memory
        self._room: dict[int, int] = {}
        """Sizes of the inputs' buffers on the card, by index of the input."""
        self._buffer: Buffer[Address] | None = None
        self._datasets: tuple[Dataset, Dataset] | None = None
        self._loaded = False
        self._failure = ""
        """The failure of the last execution, until the model is loaded again."""
        with device.exclusive():
            device.ensure_available()
            self._load()
            with device.detecting_loss(path), self._context.current():
                driver = self._driver
                self.description: ModelDescription = driver.describe(self._model, free_shapes=True)
                self.ranges = self._ranges()
                """(minimum, maximum) of each dim of each input; -1 means unlimited."""
            self._lock = device.add_execution_lock()

    @property
    def unsized(self) -> list[int]:
        """Indexes of the outputs whose size is known only after an execution."""
        sizes = [tensor.nbytes for tensor in self.description.outputs]
        return [index for index, nbytes in enumerate(sizes) if not nbytes]

    def bind(self, input_bytes: Sequence[int]) -> None:
        """Allocate buffers for inputs of these sizes.

        Raises OutOfMemory, DriverFault or EngineLost.
        """
        with self._device.current():
            self._bind(input_bytes)

    def _bind(self, input_bytes: Sequence[int]) -> None:
        self._free_tensors()
        outputs = [tensor.nbytes for tensor in self.description.outputs]
        places: list[tuple[int, int]] = []
        end = 0
        for nbytes in (*input_bytes, *outputs):
            places.append((end, nbytes))
            end += -(-part_bytes(nbytes) // 64) * 64 if nbytes else 0
        self._buffer = self._memory.allocate("tensors of free shapes", max(end, 1))
        start = self._buffer.memory
        buffers = [(Address(start + at) if size else _NOWHERE, size) for at, size in places]
        count = len(input_bytes)
        # pyACL requires an address for each input, even one of 0 bytes.
        inputs = [(address or start, size) for address, size in buffers[:count]]
        self._places = [address for address, _ in inputs]
        self._room = dict(enumerate(input_bytes))
        first = self._driver.create_dataset(inputs)
        try:
            self._datasets = first, self._driver.create_dataset(buffers[count:])
        except DriverFault:
            self._driver.destroy_dataset(first)
            raise

    def execute(
        self, inputs: Sequence[Array], outputs: Mapping[int, Array | None]
    ) -> dict[int, Array]:
        """Execute once.

        Blocks until earlier executions are done. During the execution all Python threads are
        blocked.

        Args:
            inputs: All inputs, in order.
            outputs: By index of each requested output: the array to write to, or None to allocate
                an array.

        Returns:
            The results by index of the output.

        Raises:
            EngineFault: The execution failed.
            OutOfMemory: The card has not enough memory.
            EngineLost: The card is lost.
        """
        while True:
            self._device.acquire_lock(self._lock, f"an execution of {self.path}")
            try:
                self._device.ensure_available()
                if not self._failure:
                    with self._context.current():
                        return self._execute(inputs, outputs)
            except DriverFault as fault:
                raise self._fault_of(fault) from fault
            finally:
                self._lock.release()
            self._recover()  # after the release, because `exclusive` acquires all locks

    def reload(self) -> None:
        """Load the model again. Raises DriverFault or EngineLost."""
        with self._device.exclusive():
            self._device.ensure_available()
            self._unload()
            self._load()

    def close(self) -> None:
        """Free the model, unless the card is lost. Call once."""
        with self._device.exclusive(), self._device.releasing():
            self._device.remove_execution_lock(self._lock)
            if self._device.lost is None:
                with self._device.current():
                    self._free_tensors()
                self._unload()

    def _execute(
        self, inputs: Sequence[Array], outputs: Mapping[int, Array | None]
    ) -> dict[int, Array]:
        assert self._datasets is not None, "execute before bind"
        driver, free = self._driver, self._driver.free_shapes
        input_set, output_set = self._datasets
        for index, array in enumerate(inputs):
            room = self._room[index]
            if array.nbytes > room:
                name = self.description.data_inputs[index].name
                raise EngineFault(
                    f"input '{name}': found {array.nbytes:,} bytes, expected at most {room:,}"
                )
            if array.nbytes:
                source = Address(array.ctypes.data)
                driver.copy(self._places[index], room, source, array.nbytes, Copy.TO_DEVICE)
            free.set_dims(input_set, index, self.description.data_inputs[index], array.shape)
        try:
            free.execute(self._model, input_set, output_set)
            return {
                index: self._fetch(index, free.output(output_set, index), target)
                for index, target in outputs.items()
            }
        finally:
            if self._device.lost is None:
                self._free_outputs(output_set)

    def _fetch(self, index: int, produced: Produced, target: Array | None) -> Array:
        tensor = self.description.outputs[index]
        dtype = ACL_DTYPES[tensor.dtype].numpy
        result = np.empty(produced.dims, dtype) if target is None else target
        if result.shape != produced.dims or result.dtype != dtype:
            raise EngineFault(
                f"output '{self.description.output_names[index]}': found "
                f"{result.dtype}{list(result.shape)}, expected {dtype}{list(produced.dims)}, the "
                "result of the execution"
            )
        if result.nbytes:
            host = Address(result.ctypes.data)
            self._driver.copy(host, result.nbytes, produced.address, result.nbytes, Copy.TO_HOST)
        return result

    def _free_outputs(self, outputs: Dataset) -> None:
        """Free outputs that the driver allocated, also after a failed execution."""
        for index in self.unsized:
            address = self._driver.free_shapes.address(outputs, index)
            if address != _NOWHERE:
                self._driver.free_shapes.clear(outputs, index)
                self._driver.free(address)

    def _fault_of(self, fault: DriverFault) -> RuntimeFault:
        text = f"{self.path}: {fault}"
        if fault.kind is FailureKind.LOST:
            return self._device.mark_lost(text)
        if fault.kind is FailureKind.MEMORY:
            return OutOfMemory(text)
        if fault.kind is FailureKind.RELOAD:
            self._failure = text
        return EngineFault(text)

    def _ranges(self) -> list[tuple[tuple[int, int], ...]]:
        tensors = self.description.data_inputs
        found = self._driver.free_shapes.ranges(self._model, len(tensors))
        return [
            # If the model has no ranges for an input, they follow from the input's dims.
            own if len(own) == len(tensor.dims) else tuple((max(d, 0), d) for d in tensor.dims)
            for own, tensor in zip(found, tensors, strict=True)
        ]

    # -- load and reload: within `AscendDevice.exclusive` --

    def _load(self) -> None:
        driver = self._driver
        with ExitStack() as undo, self._device.detecting_loss(self.path):
            self._context = self._device.new_context()
            undo.callback(self._undo_context)
            with self._context.current():
                self._model: ModelId = driver.free_shapes.load(str(self.path))
            self._loaded = True
            undo.pop_all()

    def _undo_context(self) -> None:
        if self._device.lost is None:
            self._context.destroy()

    def _unload(self) -> None:
        """Unload the model; no-op after a failed load."""
        if self._loaded:
            self._loaded = False
            with self._context.current():
                self._driver.unload(self._model)
            self._context.destroy()

    def _recover(self) -> None:
        """Load the model again after a failed execution, which invalidates the context.

        Raises EngineLost.
        """
        with self._device.exclusive():
            self._device.ensure_available()
            if not self._failure:
                return
            _log.warning("loaded again after a failed execution: %s", self._failure)
            try:
                self._unload()
                self._load()
            except DriverFault as fault:
                raise self._device.mark_lost(f"{self.path}: recovery failed: {fault}") from fault
            self._failure = ""

    def _free_tensors(self) -> None:
        for dataset in self._datasets or ():
            self._driver.destroy_dataset(dataset)
        self._datasets = None
        if self._buffer is not None:
            self._buffer.free()
            self._buffer = None


def bytes_at(description: ModelDescription, index: int, dims: Sequence[int]) -> int:
    """Return the size of input `index` with these dims."""
    tensor = description.data_inputs[index]
    return math.prod(dims) * ACL_DTYPES[tensor.dtype].numpy.itemsize
