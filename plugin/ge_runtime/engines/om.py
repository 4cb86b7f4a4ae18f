"""The Ascend engine: `model.om`, compiled by ATC, on a card.

One engine is one slot on a lane of the card: inputs, outputs and the gear have their place in
device memory, found once. Batches and answers lie in pinned memory of the host: an execution is one
copy for each input, the model, and one copy for each output straight to where it is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.ascend.card import Card
from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.codes import Kind
from ge_runtime.ascend.description import (
    AIPP_INPUT,
    DTYPES,
    GEAR_INPUT,
    PLAIN_FORMATS,
    ModelTensor,
)
from ge_runtime.ascend.driver import Address
from ge_runtime.ascend.lanes import CardLane
from ge_runtime.ascend.om_model import Gear, LoadedModel, ModelFile
from ge_runtime.ascend.slots import Slot, Transfer, slot_bytes
from ge_runtime.devices import Device
from ge_runtime.engines.base import GraphTensor, Shapes, Signature
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory, RuntimeFault
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.specs import Array, Tensors

_COMPILED: Final = re.compile(r"[^:]+:\d+:(.+)")
"""An output's name as compilers write it: node, port, and the name that it had."""


class OmEngine:
    """See `base.Engine`. Executes exactly the shapes that the file was compiled for."""

    def __init__(
        self,
        card: Card,
        lane: CardLane,
        model: LoadedModel,
        memory: Device[Address],
        is_pinned: Callable[[Array], bool],
    ) -> None:
        """Made by `open`; closes the model it is given."""
        self._card = card
        self._lane = lane
        self._model = model
        self._memory = memory
        self._is_pinned = is_pinned
        self._slot: Slot | None = None
        self._closed = False
        description = model.description
        gears = model.gears.values()
        self._inputs = [tensor.name for tensor in description.data_inputs]
        names = _output_names(description.outputs)
        self._outputs = {name: place for place, name in enumerate(names)}
        self._dtypes = [DTYPES[tensor.dtype].numpy for tensor in description.outputs]
        self._signature = Signature(
            tuple(
                GraphTensor(t.name, DTYPES[t.dtype], _common([g.inputs[i] for g in gears]))
                for i, t in enumerate(description.data_inputs)
            ),
            tuple(
                GraphTensor(names[i], DTYPES[t.dtype], _common([g.outputs[i] for g in gears]))
                for i, t in enumerate(description.outputs)
            ),
        )

    @classmethod
    def open(
        cls,
        path: Path,
        card: Card,
        memory: Device[Address],
        *,
        lane: int,
        workspace_bytes: int | None,
        is_pinned: Callable[[Array], bool],
    ) -> OmEngine:
        """The model in `path`, on a lane of the card.

        memory: of the card, for the slot. workspace_bytes: the lane's; None: as large as its models
        need. is_pinned: whether copies to and from an array can be queued.
        Raises ArtifactFault for a file that cannot be executed here, OutOfMemory, PlanFault, or
        EngineLost.
        """
        try:
            card.enter()
            file = ModelFile.read(path, card.driver)
            if file.workspace_bytes == 0:
                raise ArtifactFault(
                    f"{path}: found a model whose sizes only an execution tells, so that its "
                    "memory cannot be planned; expected gears: name them in config.pbtxt "
                    "(gears.<axes>) and run `ge-runtime build`"
                )
            there, model = card.load(file, lane, workspace_bytes)
        except DriverFault as fault:
            raise _load_fault(path, card, fault) from fault
        except OSError as error:
            raise ArtifactFault(f"{path}: {error.strerror}") from error
        try:
            _refuse_what_nobody_can_feed(path, model)
        except ArtifactFault:
            card.unload(there, model)
            raise
        return cls(card, there, model, memory, is_pinned)

    @property
    def signature(self) -> Signature:
        """See Engine. Without the gear input, which no caller feeds."""
        return self._signature

    @property
    def shapes(self) -> Sequence[Shapes]:
        """See Engine. By growing elements."""
        return [
            dict(zip(self._inputs, gear.inputs, strict=True)) for gear in self._model.gears.values()
        ]

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """See Engine. The slot, which is as large as the largest gear."""
        if self._slot is None:
            self._card.enter()
            self._slot = Slot(self._model, self._card.driver, self._memory)

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """See Engine. Arrays that are not pinned are copied one more time, and not in a stream."""
        slot = self._slot
        assert slot is not None, "run before bind"
        gear = self._gear_of(inputs)
        results = {name: self._result(name, target, gear) for name, target in outputs.items()}
        copies_in = [
            self._transfer(inputs[name], address)
            for name, address in zip(self._inputs, slot.inputs, strict=False)
        ]
        copies_out = [
            self._transfer(array, slot.outputs[self._outputs[name]])
            for name, array in results.items()
        ]
        self._lane.execute(slot, gear, copies_in, copies_out)
        return results

    def weights_bytes(self) -> int:
        """See Engine. Engines of the same file share them."""
        return self._model.file.weights_bytes

    def device_io_bytes(self) -> int:
        """See Engine."""
        return slot_bytes(self._model)

    def intermediates(self, shapes: Shapes) -> Intermediates:
        """See Engine. The compiler's plan, one for all gears; models of a lane share it."""
        return Intermediates((Lifetime("workspace", self._model.file.workspace_bytes, 0, 0),))

    def close(self) -> None:
        """See Engine. Waits for what the card executes; what is lost stays where it is."""
        if self._closed:
            return
        self._closed = True
        with self._card.releasing():
            if self._slot is not None and self._card.lost is None:
                self._card.enter()
                self._slot.close()
            self._card.unload(self._lane, self._model)

    def _gear_of(self, inputs: Tensors) -> Gear:
        shapes = tuple(inputs[name].shape for name in self._inputs)
        gear = self._model.gears.get(shapes)
        if gear is None:
            found = _shown(dict(zip(self._inputs, shapes, strict=True)))
            compiled = "; ".join(map(_shown, self.shapes))
            raise EngineFault(f"found inputs {found}, expected those of a gear: {compiled}")
        return gear

    def _result(self, name: str, target: Array | None, gear: Gear) -> Array:
        place = self._outputs[name]
        shape = gear.outputs[place]
        if target is None:
            return np.empty(shape, self._dtypes[place])
        if target.shape != shape or target.dtype != self._dtypes[place]:
            raise EngineFault(
                f"output '{name}': found {target.dtype}{list(target.shape)}, expected "
                f"{self._dtypes[place]}{list(shape)} at this gear"
            )
        return target

    def _transfer(self, array: Array, device: Address) -> Transfer:
        host = Address(array.ctypes.data)
        return Transfer(host, device, array.nbytes, self._is_pinned(array))


def _load_fault(path: Path, card: Card, fault: DriverFault) -> RuntimeFault:
    """What a failed load means."""
    if fault.kind is Kind.LOST:
        return card.lose(f"{path}: {fault}")
    if fault.kind is Kind.MEMORY:
        return OutOfMemory(f"{path}: {fault}")
    return ArtifactFault(
        f"{path}: {card.name}, {card.soc_name}, cannot execute it: {fault}; `ge-runtime build` "
        "makes it anew from model.onnx, for this chip"
    )


def _refuse_what_nobody_can_feed(path: Path, model: LoadedModel) -> None:
    description = model.description
    faults: list[str] = []
    for tensor in (*description.data_inputs, *description.outputs):
        if tensor.name == AIPP_INPUT:
            faults.append("found dynamic AIPP, expected static or none: `atc --insert_op_conf`")
        elif tensor.dtype not in DTYPES:
            faults.append(f"'{tensor.name}': found aclDataType {tensor.dtype}, which Triton lacks")
        elif tensor.format not in PLAIN_FORMATS:
            expected = "ND, NCHW or NHWC, whose elements lie in order: `atc --input_format`"
            faults.append(f"'{tensor.name}': found aclFormat {tensor.format}, expected {expected}")
    if description.family is not None and description.inputs[-1].name != GEAR_INPUT:
        names = ", ".join(tensor.name for tensor in description.inputs)
        faults.append(f"found the inputs {names}, expected {GEAR_INPUT} as the last of them")
    if faults:
        raise ArtifactFault("\n".join(f"{path}: {fault}" for fault in faults))


def _output_names(tensors: Sequence[ModelTensor]) -> list[str]:
    """The names that the ONNX graph had: compilers make node:port:name of them, or leave them."""
    own = [found[1] if (found := _COMPILED.fullmatch(t.name)) else t.name for t in tensors]
    return own if len({*own}) == len(own) else [tensor.name for tensor in tensors]


def _common(dims: Sequence[tuple[int, ...]]) -> tuple[int | None, ...]:
    """The dims, None for those in which gears differ."""
    return tuple(sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*dims, strict=True))


def _shown(shapes: Shapes) -> str:
    return ", ".join(f"{name} {list(dims)}" for name, dims in shapes.items())
