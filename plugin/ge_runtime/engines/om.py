"""The Ascend engine: .om files, compiled by ATC, on a card, executed one after another as one.

One engine is one slot on a stream of the card: all tensors, and each stage's gear, have their place
in device memory, found once. Batches and answers lie in pinned memory of the host: an execution is
one copy for each input, the stages, and one copy for each output straight to where it is wanted.
What one stage gives and another takes stays on the card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ge_runtime.ascend.card import Card
from ge_runtime.ascend.description import ACL_DTYPES
from ge_runtime.ascend.driver import Address
from ge_runtime.ascend.om_model import Dims, OmGear, Stage
from ge_runtime.ascend.return_codes import DriverFault
from ge_runtime.ascend.row_copies import gathering, scattering
from ge_runtime.ascend.slot import CardExecution, Slot, Transfer, slot_layout, tensor_bytes
from ge_runtime.ascend.stream_executor import StreamExecutor
from ge_runtime.config import DeclaredImages
from ge_runtime.devices import Device
from ge_runtime.engines.artifact import graph_name
from ge_runtime.engines.base import DeviceRows, GraphTensor, Shapes, Signature
from ge_runtime.engines.chain import Wiring
from ge_runtime.engines.om_files import load_fault, read_files, refuse_what_nobody_can_feed
from ge_runtime.engines.om_images import (
    ExecutableModel,
    ImageModel,
    common_dims,
    graph_inputs,
    image_model,
)
from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.specs import Array, Tensors


class _Route(NamedTuple):
    """What executions that give certain outputs take."""

    stages: tuple[int, ...]
    """By position, in order."""
    inputs: tuple[str, ...]


class OmEngine:
    """Executes exactly the shapes that the files were compiled for.

    A chain of one file or more, which are its stages, named after the files. Inputs and outputs
    are wired by name, as `Wiring.of` says.
    """

    def __init__(
        self,
        card: Card,
        executor: StreamExecutor,
        stages: Sequence[Stage],
        memory: Device[Address],
        is_pinned: Callable[[Array], bool],
        asked: Sequence[str],
        buffers: int,
        images: Sequence[ImageModel],
    ) -> None:
        """Made by `open`; closes the models it is given. Raises ArtifactFault."""
        self._card = card
        self._executor = executor
        self._stages = stages
        self._memory = memory
        self._is_pinned = is_pinned
        self._slot: Slot | None = None
        self._buffers = buffers
        self._closed = False
        names = [graph_name(stage.path, card.soc_name) for stage in stages]
        models = dict(zip(names, images, strict=True))
        self._images = {i: own.batch for i, own in enumerate(images) if own.batch is not None}
        signatures = {name: signature_of(model) for name, model in models.items()}
        self._wiring = Wiring.of(signatures, asked)
        self._inputs = [tensor.name for tensor in self._wiring.signature.inputs]
        self._dtypes = {t.name: t.dtype.numpy for t in self._wiring.signature.outputs}
        gears = join_gears(models)
        self._gears = {tuple(gear.dims[name] for name in self._inputs): gear for gear in gears}
        self._gone = self._wiring.spans.keys() - {*asked}
        """What later stages may have written over when all are done."""
        self._asked = frozenset(asked)
        self._usual = self._route(asked)  # of all executions, but those of tests
        self._packing = slot_layout([stage.model for stage in stages], asked)
        self._rooms = tensor_bytes([stage.model for stage in stages])

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        card: Card,
        memory: Device[Address],
        *,
        executor: int,
        buffers: int,
        workspace_bytes: int | None,
        is_pinned: Callable[[Array], bool],
        outputs: Sequence[str],
        images: Mapping[str, DeclaredImages],
    ) -> OmEngine:
        """The models in `paths`, in order of execution, on an executor of the card.

        memory: of the card, for the slot. executor: its number. buffers: of which of its buffer
        sets the slot is, from 0: executions of several overlap with their copies.
        workspace_bytes: the executor's; None: as large as its models need. is_pinned: whether
        copies to and from an array can be queued. outputs: those that executions will want, of
        what stages give each other. images: inputs that config.pbtxt has as such, by name.
        Raises ArtifactFault for files that cannot be executed here, or not together, OutOfMemory,
        PlanFault, or EngineLost; then nothing stays loaded.
        """
        try:
            # First: query_size is taken to need a device (tests/simulator/trust.md, question 4).
            card.enter()
            files = read_files(paths, card)
            loaded_on, stages = card.load(files, executor, workspace_bytes, buffers + 1)
        except DriverFault as fault:
            raise load_fault(fault.path or paths[0], card, fault) from fault
        except OSError as error:
            raise ArtifactFault(f"{error.filename}: {error.strerror}") from error
        try:
            seen = [image_model(stage, card.driver, images) for stage in stages]
            for stage, model in zip(stages, seen, strict=True):
                refuse_what_nobody_can_feed(stage.path, model)
            return cls(card, loaded_on, stages, memory, is_pinned, outputs, buffers, seen)
        except DriverFault as fault:
            told = load_fault(paths[0], card, fault)  # first: of a lost card nothing is called
            card.unload(loaded_on, stages)
            raise told from fault
        except BaseException:
            card.unload(loaded_on, stages)
            raise

    @property
    def signature(self) -> Signature:
        """Without gear inputs, which no caller feeds; the outputs of all stages."""
        return self._wiring.signature

    @property
    def shapes(self) -> Sequence[Shapes]:
        """The first stage's by growing elements."""
        return [dict(zip(self._inputs, dims, strict=True)) for dims in self._gears]

    @property
    def lost(self) -> bool:
        """Whether the card is lost, whoever found that out."""
        return self._card.lost is not None

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """The slot."""
        if self._slot is None:  # once: it is as large as the largest gear, whatever is asked for
            try:
                self._card.enter()
                self._slot = Slot(
                    self._stages, self._packing, self._card.driver, self._memory, self._images
                )
            except DriverFault as fault:
                raise load_fault(self._stages[0].path, self._card, fault) from fault

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """Executes the stages that the wanted outputs need, and no others.

        Arrays that are not pinned are copied one more time, and not in a stream.
        """
        return self.run_rows(inputs, outputs)

    def run_rows(
        self,
        inputs: Mapping[str, Array | DeviceRows],
        outputs: Mapping[str, Array | DeviceRows | None],
    ) -> dict[str, Array]:
        slot = self._slot
        assert slot is not None, "run before bind"
        gear = self._gear_of(inputs)
        # All arguments are checked before anything is queued on the card.
        results: dict[str, Array] = {}
        left: dict[str, DeviceRows] = {}
        for name, target in outputs.items():
            if isinstance(target, DeviceRows):
                self._ensure_fits(name, target, gear)
                left[name] = target
            else:
                results[name] = self._result(name, target, gear)
        route = self._usual if outputs.keys() == self._asked else self._route(outputs)
        if not route.stages:  # nothing is wanted
            return results
        addresses, rooms = slot.addresses, self._rooms
        self._executor.execute(
            slot,
            CardExecution(
                [(number, gear.stages[number]) for number in route.stages],
                [
                    self._transfer(array, addresses[name], rooms[name])
                    for name in route.inputs
                    if not isinstance(array := inputs[name], DeviceRows)
                ],
                [
                    self._transfer(array, addresses[name], array.nbytes)
                    for name, array in results.items()
                ],
                rows_in=[
                    copy
                    for name in route.inputs
                    if isinstance(rows := inputs[name], DeviceRows)
                    for copy in gathering(
                        rows.places, rows.row_bytes, rows.shape[0], addresses[name]
                    )
                ],
                rows_out=[
                    copy
                    for name, rows in left.items()
                    for copy in scattering(rows.places, rows.row_bytes, addresses[name])
                ],
            ),
            self._buffers,
        )
        return results

    @property
    def files(self) -> Sequence[Path]:
        """What its models may be loaded of: files of one content are one model."""
        return [path for stage in self._stages for path in stage.model.paths]

    def reload(self) -> None:
        """Load its models again, into the memory that they have. Raises DriverFault, EngineLost."""
        with self._card.exclusive():
            self._card.ensure_there()
            self._executor.reload(list(dict.fromkeys(stage.model for stage in self._stages)))

    def weights_bytes(self) -> int:
        """Engines of the same files share them."""
        return sum(stage.model.file.weights_bytes for stage in self._stages)

    def device_io_bytes(self) -> int:
        """With what lies between stages."""
        return self._packing.peak

    def intermediates(self, shapes: Shapes) -> Intermediates:
        """The compiler's plan, one for all gears; all models of an executor share it."""
        largest = max(stage.model.file.workspace_bytes for stage in self._stages)
        return Intermediates((Lifetime("workspace", largest, 0, 0),))

    def close(self) -> None:
        """Waits for what the card executes; what is lost stays where it is."""
        if self._closed:
            return
        self._closed = True
        with self._card.releasing():
            # CANN's order of release: datasets and their buffers, then models.
            if self._slot is not None and self._card.lost is None:
                self._card.enter()
                self._slot.close()
            self._card.unload(self._executor, self._stages)

    def _route(self, outputs: Iterable[str]) -> _Route:
        """Those of the stages that these outputs need, and no others."""
        stages, order = self._wiring.stages, [*self._wiring.stages]
        needed = [step.stage for step in self._wiring.steps(outputs)]
        taken = {tensor.name for stage in needed for tensor in stages[stage].inputs}
        return _Route(tuple(map(order.index, needed)), tuple(n for n in self._inputs if n in taken))

    def _gear_of(self, inputs: Mapping[str, Array | DeviceRows]) -> ChainGear:
        shapes = tuple(inputs[name].shape for name in self._inputs)
        gear = self._gears.get(shapes)
        if gear is None:
            found = listed(dict(zip(self._inputs, shapes, strict=True)))
            compiled = "; ".join(map(listed, self.shapes))
            raise EngineFault(f"found inputs {found}, expected those of a gear: {compiled}")
        return gear

    def _result(self, name: str, target: Array | None, gear: ChainGear) -> Array:
        if name in self._gone:
            raise EngineFault(
                f"output '{name}': found it wanted, expected only what the chain was opened for: "
                "a later stage takes it, and its bytes may be in use for another tensor then"
            )
        if target is None:
            target = np.empty(gear.dims[name], self._dtypes[name])
        self._ensure_fits(name, target, gear)
        return target

    def _ensure_fits(self, name: str, target: Array | DeviceRows, gear: ChainGear) -> None:
        """Raises EngineFault for what cannot hold the result."""
        shape, dtype = gear.dims[name], self._dtypes[name]
        if target.shape != shape or target.dtype != dtype:
            raise EngineFault(
                f"output '{name}': found {target.dtype}{list(target.shape)}, expected "
                f"{dtype}{list(shape)} at this gear"
            )

    def _transfer(self, array: Array, device: Address, room: int) -> Transfer:
        host = Address(array.ctypes.data)
        return Transfer(host, device, array.nbytes, room, self._is_pinned(array))


def signature_of(model: ImageModel) -> Signature:
    """What the model takes and gives; sizes in which its gears differ vary."""
    description, gears = model.description, model.gears.values()
    return Signature(
        graph_inputs(model),
        tuple(
            GraphTensor(name, ACL_DTYPES[t.dtype], common_dims([gear.outputs[i] for gear in gears]))
            for i, (name, t) in enumerate(
                zip(description.output_names, description.outputs, strict=True)
            )
        ),
    )


@dataclass(frozen=True, slots=True)
class ChainGear:
    """One set of shapes that the chain can execute."""

    stages: tuple[OmGear, ...]
    """Each stage's own."""
    dims: Mapping[str, Dims]
    """Of all tensors of all stages, by name."""


def join_gears(models: Mapping[str, ExecutableModel]) -> list[ChainGear]:
    """Every combination of the stages' gears that agrees on the tensors they have in common.

    models: by stage, in order of execution. The first stage's gears are in their order.
    Raises ArtifactFault, with both lists, at the first stage that agrees with no combination of
    those before it.
    """
    joined = [ChainGear((), {})]
    for stage, model in models.items():
        own = [(gear, _dims(model, gear)) for gear in model.gears.values()]
        common = joined[0].dims.keys() & own[0][1].keys()
        names = [name for name in own[0][1] if name in common]
        # By the shapes of the common tensors, so that no pairs of gears are compared.
        agreeing: dict[tuple[Dims, ...], list[tuple[OmGear, Mapping[str, Dims]]]] = {}
        for gear, dims in own:
            agreeing.setdefault(_of(dims, names), []).append((gear, dims))
        more = [
            ChainGear((*before.stages, gear), {**before.dims, **dims})
            for before in joined
            for gear, dims in agreeing.get(_of(before.dims, names), ())
        ]
        if not more:
            given = dict.fromkeys(_of(before.dims, names) for before in joined)
            raise ArtifactFault(
                f"the stages {', '.join(models)} do not fit together: stage '{stage}': found gears "
                f"for {_shown(names, agreeing)}, expected one for what there is before it: "
                f"{_shown(names, given)}; `ge-runtime build` compiles all stages for the same gears"
            )
        joined = more
    return joined


def listed(shapes: Shapes) -> str:
    """Shapes for people."""
    return ", ".join(f"{name} {list(dims)}" for name, dims in shapes.items())


def _dims(model: ExecutableModel, gear: OmGear) -> dict[str, Dims]:
    description = model.description
    names = [tensor.name for tensor in description.data_inputs]
    return {
        **dict(zip(names, gear.inputs, strict=True)),
        **dict(zip(description.output_names, gear.outputs, strict=True)),
    }


def _of(dims: Mapping[str, Dims], names: Sequence[str]) -> tuple[Dims, ...]:
    return tuple(dims[name] for name in names)


def _shown(names: Sequence[str], shapes: Iterable[tuple[Dims, ...]]) -> str:
    return "; ".join(listed(dict(zip(names, dims, strict=True))) for dims in shapes)
