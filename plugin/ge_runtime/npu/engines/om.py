"""The Ascend engine: .om files, compiled by ATC, executed on a card as a chain of stages.

An engine has one slot: device memory for all tensors and each stage's gear, allocated once. Batches
and responses are in pinned host memory. An execution is one copy for each input, the stages, and
one copy for each output directly to the output's target. Tensors between stages stay on the card.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ge_runtime.config import DeclaredImages
from ge_runtime.devices import Buffer, Device
from ge_runtime.engines.artifact import graph_name
from ge_runtime.engines.base import DeviceRows, GraphTensor, Shapes, Signature
from ge_runtime.engines.chain import Wiring
from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.npu.driver.cann_values import ACL_DTYPES, DriverFault
from ge_runtime.npu.driver.card import Card
from ge_runtime.npu.driver.driver import Address
from ge_runtime.npu.driver.memory import (
    CardExecution,
    PinnedMemory,
    Slot,
    Transfer,
    gathering,
    scattering,
    slot_layout,
    tensor_bytes,
)
from ge_runtime.npu.driver.om_model import Dims, OmGear, Stage
from ge_runtime.npu.driver.stream_executor import StreamExecutor
from ge_runtime.npu.engines.om_files import (
    ExecutableModel,
    ImageModel,
    check_tensors,
    common_dims,
    graph_inputs,
    image_model,
    load_fault,
    read_files,
)
from ge_runtime.specs import Array, Tensors


class _Route(NamedTuple):
    """The stages and inputs that certain outputs depend on."""

    stages: tuple[int, ...]
    """Positions of the stages, in order of execution."""
    inputs: tuple[str, ...]


class OmEngine:
    """A chain of one or more .om files, which executes the shapes that they were compiled for.

    The files are the stages of the chain, and are connected as in `Wiring.of`.
    """

    def __init__(
        self,
        card: Card,
        executor: StreamExecutor,
        stages: Sequence[Stage],
        memory: Device[Address],
        pinned: PinnedMemory,
        requested: Sequence[str],
        buffers: int,
        images: Sequence[ImageModel],
    ) -> None:
        """Connect the stages; called by `open`. `close` unloads them. Raises ArtifactFault."""
        self._card = card
        self._executor = executor
        self._stages = stages
        self._memory = memory
        self._pinned = pinned
        self._staging: dict[str, Buffer[NDArray[np.uint8]]] = {}
        """Pinned memory for copies of arrays that cannot be pinned, by tensor name."""
        self._slot: Slot | None = None
        self._buffers = buffers
        self._closed = False
        names = [graph_name(stage.path, card.soc_name) for stage in stages]
        models = dict(zip(names, images, strict=True))
        self._images = {i: each.batch for i, each in enumerate(images) if each.batch is not None}
        signatures = {name: signature_of(model) for name, model in models.items()}
        self._wiring = Wiring.of(signatures, requested)
        self._inputs = [tensor.name for tensor in self._wiring.signature.inputs]
        self._dtypes = {t.name: t.dtype.numpy for t in self._wiring.signature.outputs}
        gears = join_gears(models)
        self._gears = {tuple(gear.dims[name] for name in self._inputs): gear for gear in gears}
        self._overwritten = self._wiring.spans.keys() - {*requested}
        """Tensors whose memory later stages may reuse."""
        self._requested = frozenset(requested)
        self._usual = self._route(requested)  # computed once: only tests request other outputs
        self._packing = slot_layout([stage.model for stage in stages], requested)
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
        pinned: PinnedMemory,
        outputs: Sequence[str],
        images: Mapping[str, DeclaredImages],
    ) -> OmEngine:
        """Load files on an executor of the card. After an error nothing stays loaded.

        Args:
            paths: The files, in order of execution.
            card: The card.
            memory: The card's memory, for the slot.
            executor: Number of the executor.
            buffers: Index of the slot's buffer set, from 0.
            workspace_bytes: Size of the executor's workspace; None: as large as its models need.
            pinned: Pinned memory of the host; copies to and from it are queued.
            outputs: The tensors that executions may request; some may be between stages.
            images: Image declarations in config.pbtxt, by input name.

        Raises:
            ArtifactFault: A file cannot be executed here, or the files do not fit together.
            OutOfMemory: The card has not enough memory.
            PlanFault: The workspace does not fit.
            EngineLost: The card is lost.
        """
        try:
            # query_size is assumed to need a device (tests/simulator/trust.md, question 4).
            with card.current():
                files = read_files(paths, card)
            loaded_on, stages = card.load(files, executor, workspace_bytes, buffers + 1)
        except DriverFault as fault:
            raise load_fault(fault.path or paths[0], card, fault) from fault
        except OSError as error:
            raise ArtifactFault(f"{error.filename}: {error.strerror}") from error
        try:
            with card.current():
                models = [image_model(stage, card.driver, images) for stage in stages]
            for stage, model in zip(stages, models, strict=True):
                check_tensors(stage.path, model)
            return cls(card, loaded_on, stages, memory, pinned, outputs, buffers, models)
        except DriverFault as fault:
            load_error = load_fault(paths[0], card, fault)  # first: marks a lost card as lost
            card.unload(loaded_on, stages)
            raise load_error from fault
        except BaseException:
            card.unload(loaded_on, stages)
            raise

    @property
    def signature(self) -> Signature:
        """The inputs except for gear inputs, and the outputs of all stages."""
        return self._wiring.signature

    @property
    def shapes(self) -> Sequence[Shapes]:
        """The shapes of the gears, in the order of the first stage's gears."""
        return [dict(zip(self._inputs, dims, strict=True)) for dims in self._gears]

    @property
    def lost(self) -> bool:
        return self._card.lost is not None

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Allocate the slot, at the first call: it has the size of the largest gear."""
        if self._slot is None:
            try:
                with self._card.current():
                    self._slot = Slot(
                        self._stages, self._packing, self._card.driver, self._memory, self._images
                    )
            except DriverFault as fault:
                raise load_fault(self._stages[0].path, self._card, fault) from fault

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """See `Engine.run`. Executes only the stages that the requested outputs depend on.

        Copies of arrays that are not pinned are synchronous, or go through `_staged` arrays.
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
        resident: dict[str, DeviceRows] = {}
        for name, target in outputs.items():
            if isinstance(target, DeviceRows):
                self._ensure_fits(name, target, gear)
                resident[name] = target
            else:
                results[name] = self._result(name, target, gear)
        route = self._usual if outputs.keys() == self._requested else self._route(outputs)
        if not route.stages:  # no output is requested
            return results
        addresses, rooms = slot.addresses, self._rooms
        given = {
            name: self._staged(name, array, filled=True)
            for name in route.inputs
            if not isinstance(array := inputs[name], DeviceRows)
        }
        received = {name: self._staged(name, array) for name, array in results.items()}
        self._executor.execute(
            slot,
            CardExecution(
                [(number, gear.stages[number]) for number in route.stages],
                [
                    self._transfer(array, addresses[name], rooms[name])
                    for name, array in given.items()
                ],
                [
                    self._transfer(array, addresses[name], array.nbytes)
                    for name, array in received.items()
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
                    for name, rows in resident.items()
                    for copy in scattering(rows.places, rows.row_bytes, addresses[name])
                ],
            ),
            self._buffers,
        )
        for name, array in received.items():
            if array is not results[name]:
                np.copyto(results[name], array)
        return results

    @property
    def files(self) -> Sequence[Path]:
        """The files of the models, including files of other engines with the same content."""
        return [path for stage in self._stages for path in stage.model.paths]

    def reload(self) -> None:
        """See `Reloadable.reload`. Raises DriverFault or EngineLost."""
        with self._card.exclusive():
            self._card.ensure_available()
            self._executor.reload(list(dict.fromkeys(stage.model for stage in self._stages)))

    def weights_bytes(self) -> int:
        """Return the size of the weights, which engines of the same files share."""
        return sum(stage.model.file.weights_bytes for stage in self._stages)

    def device_io_bytes(self) -> int:
        """Return the size of the slot, including tensors between stages."""
        return self._packing.peak

    def intermediates(self, shapes: Shapes) -> Intermediates:
        """Return the compiler's workspace, which all models of an executor share."""
        largest = max(stage.model.file.workspace_bytes for stage in self._stages)
        return Intermediates((Lifetime("workspace", largest, 0, 0),))

    def close(self) -> None:
        """See `Engine.close`. Waits for current executions; a lost card is not called."""
        if self._closed:
            return
        self._closed = True
        with self._card.releasing():
            # CANN's order: datasets and their buffers first, then models.
            if self._slot is not None and self._card.lost is None:
                with self._card.current():
                    self._slot.close()
            self._card.unload(self._executor, self._stages)
            for buffer in self._staging.values():
                buffer.free()

    def _route(self, outputs: Iterable[str]) -> _Route:
        """Return the stages and inputs that these outputs depend on."""
        stages, order = self._wiring.stages, [*self._wiring.stages]
        needed = [step.stage for step in self._wiring.steps(outputs)]
        used = {tensor.name for stage in needed for tensor in stages[stage].inputs}
        return _Route(tuple(map(order.index, needed)), tuple(n for n in self._inputs if n in used))

    def _gear_of(self, inputs: Mapping[str, Array | DeviceRows]) -> ChainGear:
        shapes = tuple(inputs[name].shape for name in self._inputs)
        gear = self._gears.get(shapes)
        if gear is None:
            found = listed(dict(zip(self._inputs, shapes, strict=True)))
            compiled = "; ".join(map(listed, self.shapes))
            raise EngineFault(f"found inputs {found}, expected those of a gear: {compiled}")
        return gear

    def _result(self, name: str, target: Array | None, gear: ChainGear) -> Array:
        if name in self._overwritten:
            raise EngineFault(
                f"output '{name}': found a tensor between stages, expected only outputs that the "
                "chain was opened for: its memory may be reused by a later stage"
            )
        if target is None:
            target = np.empty(gear.dims[name], self._dtypes[name])
        self._ensure_fits(name, target, gear)
        return target

    def _ensure_fits(self, name: str, target: Array | DeviceRows, gear: ChainGear) -> None:
        """Raise EngineFault if the target has another shape or type than the result."""
        shape, dtype = gear.dims[name], self._dtypes[name]
        if target.shape != shape or target.dtype != dtype:
            raise EngineFault(
                f"output '{name}': found {target.dtype}{list(target.shape)}, expected "
                f"{dtype}{list(shape)} at this gear"
            )

    def _staged(self, name: str, array: Array, *, filled: bool = False) -> Array:
        """Return the array, or a pinned array in its place if its memory cannot be pinned.

        Synchronous copies of CANN block other Python threads, whereas copies of NumPy do not.
        """
        if not self._pinned.is_staging or not array.nbytes or self._pinned.holds(array):
            return array
        buffer = self._staging.get(name)
        if buffer is None:
            buffer = self._pinned.allocate("staging", self._rooms[name])
            self._staging[name] = buffer
        staged = buffer.memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        if filled:
            np.copyto(staged, array)
        return staged

    def _transfer(self, array: Array, device: Address, room: int) -> Transfer:
        host = Address(array.ctypes.data)
        return Transfer(host, device, array.nbytes, room, self._pinned.holds(array))


def signature_of(model: ImageModel) -> Signature:
    """Return the signature of a model. A size that differs between gears is None."""
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
    """The gear of each stage."""
    dims: Mapping[str, Dims]
    """The dims of all tensors of all stages, by tensor name."""


def join_gears(models: Mapping[str, ExecutableModel]) -> list[ChainGear]:
    """Return all combinations of the stages' gears in which common tensors have equal dims.

    The combinations are in the order of the first stage's gears.

    Args:
        models: Models by stage name, in order of execution.

    Raises:
        ArtifactFault: A stage fits no combination of the earlier stages. The text has the gears of
            the stage and of the earlier stages.
    """
    joined = [ChainGear((), {})]
    for stage, model in models.items():
        own = [(gear, _dims(model, gear)) for gear in model.gears.values()]
        common = joined[0].dims.keys() & own[0][1].keys()
        names = [name for name in own[0][1] if name in common]
        # Grouped by the shapes of the common tensors, to avoid comparing all pairs of gears.
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
                f"for {_shown(names, agreeing)}, expected a gear of earlier stages: "
                f"{_shown(names, given)}; `ge-runtime build` compiles all stages for the same gears"
            )
        joined = more
    return joined


def listed(shapes: Shapes) -> str:
    """Format shapes for errors."""
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
