"""The Ascend engine for .om files with free shapes: compiled by ATC for ranges, without gears.

All sizes within the ranges are executed without padding. Most of the memory is not planned, and an
execution blocks all Python threads of the process (see `npu.driver.free_model`). Prefer gears; this
engine is for graphs that do not support them, e.g. because inner sizes depend on data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device
from ge_runtime.engines.base import GraphTensor, Shapes, Signature
from ge_runtime.errors import ArtifactFault, EngineFault, PlanFault
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.npu.driver.card import Card
from ge_runtime.npu.driver.description import ACL_DTYPES, ModelTensor
from ge_runtime.npu.driver.driver import Address
from ge_runtime.npu.driver.free_model import FreeModel, bytes_at
from ge_runtime.npu.driver.om_model import ModelFile
from ge_runtime.npu.driver.return_codes import DriverFault
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
            card.enter()
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
        """None: any shapes; `bind` and `run` check the ranges."""

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
                "freed before the next"
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
                        f"expected {self._range(index)}, which it was compiled for: lower the "
                        "limits, or widen the range of `atc --input_shape`"
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
                    f"{list(array.shape)}, expected {self._range(index)}, which it was compiled for"
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
        """Return None: the buffers have the size of the largest execution."""

    def intermediates(self, shapes: Shapes) -> Intermediates:
        """Return nothing: workspace is not planned."""
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
