"""A model of free shapes on a card: compiled by ATC for ranges of sizes, and planned nowhere.

The driver allocates weights when it loads the model, and workspace while it executes. What the host
feeds, and outputs whose largest size the model tells, have their place; any other output the driver
allocates in each execution, and it is given back before the next.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.devices import Buffer, Device
from ge_runtime.errors import EngineFault, OutOfMemory, RuntimeFault
from ge_runtime.npu.driver.description import ACL_DTYPES, ModelDescription
from ge_runtime.npu.driver.device import AscendDevice, DeviceContext
from ge_runtime.npu.driver.driver import Address, Copy, Dataset, ModelId, Produced
from ge_runtime.npu.driver.memory import part_bytes
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind
from ge_runtime.specs import Array

_log = logging.getLogger(__name__)
_NOWHERE: Final = Address(0)


class FreeModel:
    """One load of a file, in a context of its own. One execution at a time, from any thread."""

    def __init__(self, device: AscendDevice, path: Path, memory: Device[Address]) -> None:
        """memory: of the device, for tensors that are planned.

        Blocks until what executes is done. Raises DriverFault or EngineLost; then nothing stays.
        """
        self.path: Final = path
        self._device = device
        self._driver = device.driver
        self._memory = memory
        self._room: dict[int, int] = {}
        """Bytes that each input has on the card, by its index."""
        self._buffer: Buffer[Address] | None = None
        self._datasets: tuple[Dataset, Dataset] | None = None
        self._loaded = False
        self._failure = ""
        """Of what an execution failed, until the model is loaded again."""
        with device.exclusive():
            device.ensure_there()
            self._load()
            with device.noticing_loss(path):
                driver = self._driver
                self.description: ModelDescription = driver.describe(self._model, free_shapes=True)
                self.ranges = self._ranges()
                """Of each input, the least and the largest of each dim; -1: no end."""
            self._turn = device.add_turn()

    @property
    def unsized(self) -> list[int]:
        """The outputs, by index, whose size only an execution tells."""
        sizes = [tensor.nbytes for tensor in self.description.outputs]
        return [index for index, nbytes in enumerate(sizes) if not nbytes]

    def bind(self, input_bytes: Sequence[int]) -> None:
        """Have room for inputs of so many bytes. Raises OutOfMemory, DriverFault or EngineLost."""
        self._device.enter()
        self._free_tensors()
        outputs = [tensor.nbytes for tensor in self.description.outputs]
        places: list[tuple[int, int]] = []
        end = 0
        for nbytes in (*input_bytes, *outputs):
            places.append((end, nbytes))
            end += -(-part_bytes(nbytes) // 64) * 64 if nbytes else 0
        self._buffer = self._memory.allocate("tensors of free shapes", max(end, 1))
        start = self._buffer.memory
        own = [(Address(start + at) if size else _NOWHERE, size) for at, size in places]
        count = len(input_bytes)
        # An input of no bytes has an address all the same: pyACL refuses none.
        inputs = [(address or start, size) for address, size in own[:count]]
        self._places = [address for address, _ in inputs]
        self._room = dict(enumerate(input_bytes))
        first = self._driver.create_dataset(inputs)
        try:
            self._datasets = first, self._driver.create_dataset(own[count:])
        except DriverFault:
            self._driver.destroy_dataset(first)
            raise

    def execute(
        self, inputs: Sequence[Array], outputs: Mapping[int, Array | None]
    ) -> dict[int, Array]:
        """The wanted outputs, by index; those given as arrays are written in place.

        Blocks until it is this execution's turn, and then, with all Python threads held up, until
        it is done. Raises EngineFault, OutOfMemory, or EngineLost once the card is lost.
        """
        while True:
            self._device.take(self._turn, f"the turn of {self.path}")
            try:
                self._device.ensure_there()
                if not self._failure:
                    self._context.enter()
                    return self._execute(inputs, outputs)
            except DriverFault as fault:
                raise self._fault_of(fault) from fault
            finally:
                self._turn.release()
            self._recover()  # without the turn: `exclusive` takes those of all

    def reload(self) -> None:
        """Load it again. Raises DriverFault or EngineLost."""
        with self._device.exclusive():
            self._device.ensure_there()
            self._unload()
            self._load()

    def close(self) -> None:
        """Free it; nothing of it is executing. What is lost stays where it is. Once."""
        with self._device.exclusive(), self._device.releasing():
            self._device.remove_turn(self._turn)
            if self._device.lost is None:
                self._device.enter()
                self._free_tensors()
                self._unload()

    def _execute(
        self, inputs: Sequence[Array], outputs: Mapping[int, Array | None]
    ) -> dict[int, Array]:
        assert self._datasets is not None, "execute before bind"
        driver, free = self._driver, self._driver.free_shapes
        given, made = self._datasets
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
            free.tell_dims(given, index, self.description.data_inputs[index], array.shape)
        try:
            free.execute(self._model, given, made)
            return {
                index: self._fetch(index, free.output(made, index), target)
                for index, target in outputs.items()
            }
        finally:
            if self._device.lost is None:
                self._give_back(made)

    def _fetch(self, index: int, produced: Produced, target: Array | None) -> Array:
        tensor = self.description.outputs[index]
        dtype = ACL_DTYPES[tensor.dtype].numpy
        result = np.empty(produced.dims, dtype) if target is None else target
        if result.shape != produced.dims or result.dtype != dtype:
            raise EngineFault(
                f"output '{self.description.output_names[index]}': found "
                f"{result.dtype}{list(result.shape)}, expected {dtype}{list(produced.dims)}, as "
                "the execution made it"
            )
        if result.nbytes:
            host = Address(result.ctypes.data)
            self._driver.copy(host, result.nbytes, produced.address, result.nbytes, Copy.TO_HOST)
        return result

    def _give_back(self, outputs: Dataset) -> None:
        """Free what the driver allocated for outputs, also where the execution failed later."""
        for index in self.unsized:
            address = self._driver.free_shapes.address(outputs, index)
            if address != _NOWHERE:
                self._driver.free_shapes.clear(outputs, index)
                self._driver.free(address)

    def _fault_of(self, fault: DriverFault) -> RuntimeFault:
        text = f"{self.path}: {fault}"
        if fault.kind is FailureKind.LOST:
            return self._device.lose(text)
        if fault.kind is FailureKind.MEMORY:
            return OutOfMemory(text)
        if fault.kind is FailureKind.RELOAD:
            self._failure = text
        return EngineFault(text)

    def _ranges(self) -> list[tuple[tuple[int, int], ...]]:
        tensors = self.description.data_inputs
        told = self._driver.free_shapes.ranges(self._model, len(tensors))
        return [
            # One that the model tells no ranges of: what its dims say.
            own if len(own) == len(tensor.dims) else tuple((max(d, 0), d) for d in tensor.dims)
            for own, tensor in zip(told, tensors, strict=True)
        ]

    # -- load and reload: in `AscendDevice.exclusive` --

    def _load(self) -> None:
        driver = self._driver
        with ExitStack() as undo, self._device.noticing_loss(self.path):
            self._context = DeviceContext(driver, self._device.number)
            undo.callback(self._undo_context)
            self._model: ModelId = driver.free_shapes.load(str(self.path))
            self._loaded = True
            undo.pop_all()

    def _undo_context(self) -> None:
        if self._device.lost is None:
            self._context.destroy()

    def _unload(self) -> None:
        """Nothing where a load has failed."""
        if self._loaded:
            self._context.enter()
            self._loaded = False
            self._driver.unload(self._model)
            self._context.destroy()

    def _recover(self) -> None:
        """After a failed execution the context is not to be trusted. Raises EngineLost."""
        with self._device.exclusive():
            self._device.ensure_there()
            if not self._failure:
                return
            _log.warning("loaded again after a failed execution: %s", self._failure)
            try:
                self._unload()
                self._load()
            except DriverFault as fault:
                raise self._device.lose(f"{self.path}: it cannot be mended: {fault}") from fault
            self._failure = ""

    def _free_tensors(self) -> None:
        for dataset in self._datasets or ():
            self._driver.destroy_dataset(dataset)
        self._datasets = None
        if self._buffer is not None:
            self._buffer.free()
            self._buffer = None


def bytes_at(description: ModelDescription, index: int, dims: Sequence[int]) -> int:
    """Bytes of input `index` at these dims."""
    tensor = description.data_inputs[index]
    return math.prod(dims) * ACL_DTYPES[tensor.dtype].numpy.itemsize
