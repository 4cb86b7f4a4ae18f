"""Several graphs as one: how stages fit together by tensor name, and the engine that executes them.

Stages are known by name, in order of execution. What one gives and a later one takes is handed over
as the same array, which lies where it was planned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device
from ge_runtime.engines.base import (
    Engine,
    GraphTensor,
    InArena,
    Shapes,
    Signature,
    WorkspaceArena,
)
from ge_runtime.errors import ArtifactFault, EngineFault, EngineLost, OutOfMemory
from ge_runtime.memory.lifetimes import Intermediates, Lifetime, Packing, pack
from ge_runtime.specs import Array, DType, Tensors

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One stage's part in an execution: its name, and the outputs that it must give."""

    stage: str
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A tensor that one stage gives and later ones take; stages by position, from 0."""

    tensor: GraphTensor
    first: int
    """The stage that gives it."""
    last: int
    """The last stage that takes it."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Stages whose tensors agree. Frozen; safe from any thread."""

    stages: Mapping[str, Signature]
    signature: Signature
    """The signature of the chain: the inputs that no stage gives, and all outputs of all stages.

    Without symbols: each stage names sizes for itself alone.
    """
    spans: Mapping[str, Span]
    """Tensor: its way from stage to stage, for those that are handed over."""

    @classmethod
    def of(cls, stages: Mapping[str, Signature], asked: Collection[str]) -> Wiring:
        """The wiring of `stages`, where each input is what an earlier stage gives, or the caller.

        asked: the outputs that the caller will want. Raises ArtifactFault with all that does not
        fit: a type, rank or size on which two stages disagree, a name that stands for two
        tensors, a stage whose results nobody takes.
        """
        joiner = _Joiner()
        for position, (stage, signature) in enumerate(stages.items()):
            joiner.add(position, stage, signature)
        if len(stages) > 1:  # all that config.pbtxt asks of a graph alone `Contract` tells
            joiner.refuse_useless(stages, asked)
        if joiner.faults:
            lines = "".join(f"\n  - {fault}" for fault in joiner.faults)
            raise ArtifactFault(f"the stages {', '.join(stages)} do not fit together:{lines}")
        signature = Signature(tuple(joiner.inputs.values()), tuple(joiner.outputs.values()))
        return cls(dict(stages), signature, joiner.spans)

    def steps(self, outputs: Iterable[str]) -> list[Step]:
        """What must be executed, in order, for these outputs and no others."""
        # From the end: what a stage takes is wanted of those before it.
        wanted, steps = set(outputs), []
        for stage, signature in reversed(list(self.stages.items())):
            gives = tuple(tensor.name for tensor in signature.outputs if tensor.name in wanted)
            if gives:
                wanted.update(tensor.name for tensor in signature.inputs)
                steps.append(Step(stage, gives))
        return steps[::-1]

    def shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """The shapes of all tensors that follow from those of the chain's inputs, these included.

        A size that an earlier stage leaves open is open in later ones.
        """
        known = dict(inputs)
        for signature in self.stages.values():
            known.update(foresee(signature, known))
        return known


def foresee(signature: Signature, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shapes of a graph's outputs, of those that follow from the shapes of its inputs.

    inputs: those that are known, perhaps among others that are not the graph's. An output
    follows if each of its sizes is fixed or has the name of an input's size.
    """
    sizes: dict[str | None, int] = {}
    for tensor in signature.inputs:
        # Not strict: symbols are empty where the graph names no size, shapes where none is known.
        sizes.update(zip(tensor.symbols, inputs.get(tensor.name, ()), strict=False))
    sizes.pop(None, None)  # fixed sizes have no name
    shapes = {}
    for tensor in signature.outputs:
        if tensor.dims is None:
            continue
        shape = [
            sizes.get(symbol) if dim is None else dim
            for dim, symbol in zip_longest(tensor.dims, tensor.symbols)
        ]
        found = tuple(size for size in shape if size is not None)
        if len(found) == len(shape):
            shapes[tensor.name] = found
    return shapes


class _Joiner:
    """Joins stages one by one; collects what does not fit."""

    def __init__(self) -> None:
        self.inputs: dict[str, GraphTensor] = {}
        self.outputs: dict[str, GraphTensor] = {}
        self.spans: dict[str, Span] = {}
        self.faults: list[str] = []
        self._owners: dict[str, str] = {}  # tensor: the first stage that takes or gives it
        self._origins: dict[str, int] = {}  # output: the position of the stage that gives it

    def add(self, position: int, stage: str, signature: Signature) -> None:
        for tensor in signature.inputs:
            self._take(position, f"stage '{stage}', input '{tensor.name}'", stage, tensor)
        for tensor in signature.outputs:
            self._give(position, f"stage '{stage}', output '{tensor.name}'", stage, tensor)

    def refuse_useless(self, stages: Mapping[str, Signature], asked: Collection[str]) -> None:
        """A fault for each stage that gives nothing to anybody.

        Whoever takes something too early is told so already, and counts.
        """
        wanted = {*asked, *self.spans, *self.inputs}
        for stage, signature in stages.items():
            names = [tensor.name for tensor in signature.outputs]
            if wanted.isdisjoint(names):
                self.faults.append(
                    f"stage '{stage}': found outputs {', '.join(names)}, expected one that "
                    "config.pbtxt declares or that a later stage takes"
                )

    def _take(self, position: int, place: str, stage: str, tensor: GraphTensor) -> None:
        name = tensor.name
        owner = self._owners.setdefault(name, stage)
        if name in self.outputs:
            first = self._origins[name]
            self.spans[name] = Span(self.outputs[name], first, position)
            self._compare(place, tensor, self.outputs[name], f"what stage '{owner}' gives")
        elif name in self.inputs:
            self._compare(place, tensor, self.inputs[name], f"what stage '{owner}' takes")
            self.inputs[name] = _narrowed(self.inputs[name], tensor)
        else:
            # A symbol means something in its own graph only: "n" of two stages may differ.
            self.inputs[name] = replace(tensor, symbols=())

    def _give(self, position: int, place: str, stage: str, tensor: GraphTensor) -> None:
        name = tensor.name
        owner = self._owners.setdefault(name, stage)
        if name in self.outputs:
            found = f"the name of what stage '{owner}' gives"
            self.faults.append(f"{place}: found {found}, expected a name of its own")
        elif name in self.inputs:
            found = f"a name that stage '{owner}' takes before it is there"
            expected = "stages in the order of their data, and a name of its own"
            self.faults.append(f"{place}: found {found}, expected {expected}")
        else:
            self.outputs[name] = replace(tensor, symbols=())
            self._origins[name] = position

    def _compare(self, place: str, found: GraphTensor, known: GraphTensor, whose: str) -> None:
        if found.dtype is not known.dtype or not _fit(found.dims, known.dims):
            self.faults.append(f"{place}: found {found}, expected {known}, {whose}")


def _fit(one: tuple[int | None, ...] | None, other: tuple[int | None, ...] | None) -> bool:
    """Whether some shape is one of both."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(one, other, strict=True)
    )


def _narrowed(tensor: GraphTensor, other: GraphTensor) -> GraphTensor:
    """The tensor with what only the other knows of its sizes."""
    if tensor.dims is None or other.dims is None:
        return replace(tensor, dims=other.dims if tensor.dims is None else tensor.dims)
    pairs = zip(tensor.dims, other.dims, strict=False)  # of unequal ranks only after a fault
    return replace(tensor, dims=tuple(b if a is None else a for a, b in pairs))


@dataclass(frozen=True, slots=True)
class Handover:
    """Where the tensors between stages lie in one arena."""

    packing: Packing
    sizes: Mapping[str, int]
    """Tensor: the bytes set aside for it."""


_NOTHING: Final = Handover(Packing({}, 0, 0), {})


class ChainEngine:
    """Its inputs and outputs are wired by name, as `Wiring.of` says.

    What is handed over before `bind`, is larger than planned, or has a size that only an execution
    tells, is allocated by the engine that gives it.
    """

    def __init__(
        self, stages: Mapping[str, Engine], wiring: Wiring, asked: Collection[str]
    ) -> None:
        self._stages = dict(stages)
        self._wiring = wiring
        self._asked = frozenset(asked)
        self._handover = _NOTHING
        self._arena: Array = np.empty(0, np.uint8)

    @classmethod
    def of(cls, stages: Mapping[str, Engine], asked: Collection[str]) -> ChainEngine:
        """The chain of open engines, by stage, in order of execution; it closes them.

        asked: the outputs that executions will want; their arrays are the caller's.
        Raises ArtifactFault if the stages do not fit together; then they stay open.
        """
        signatures = {stage: engine.signature for stage, engine in stages.items()}
        return cls(stages, Wiring.of(signatures, asked), asked)

    @property
    def signature(self) -> Signature:
        """The outputs are those of all stages."""
        return self._wiring.signature

    @property
    def shapes(self) -> Sequence[Shapes] | None:
        """Any, as far as stages do not limit each other."""
        return None

    @property
    def lost(self) -> bool:
        """If one of the stages is."""
        return any(engine.lost for engine in self._stages.values())

    @property
    def arena(self) -> WorkspaceArena | None:
        """That of its stages, if it is one."""
        arenas = {
            engine.arena if isinstance(engine, InArena) else None
            for engine in self._stages.values()
        }
        return arenas.pop() if len(arenas) == 1 else None

    def plan(self, largest: Iterable[Shapes]) -> Handover:
        """Where tensors between stages lie, for executions on inputs up to these shapes.

        Tensors that no stage needs at the same time share bytes.
        """
        sizes: dict[str, int] = {}
        for inputs in largest:
            for name, nbytes in self._handed_over(self._wiring.shapes(inputs)).items():
                if nbytes is not None:
                    sizes[name] = max(nbytes, sizes.get(name, 0))
        spans = self._wiring.spans
        packing = pack(
            Lifetime(name, nbytes, spans[name].first, spans[name].last)
            for name, nbytes in sizes.items()
        )
        return Handover(packing, sizes)

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """The stages hand over in bytes of `memory`."""
        handover = self.plan(largest)
        self._arena = memory.allocate("between stages", handover.packing.peak).memory
        self._handover = handover

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """Executes the stages that the wanted outputs need, and no others."""
        arrays = dict(inputs)
        for step in self._wiring.steps(outputs):
            engine = self._stages[step.stage]
            taken = {tensor.name: arrays[tensor.name] for tensor in engine.signature.inputs}
            # From this execution's arrays, not from the plan: sizes that depend on data are known
            # once the earlier stages have run.
            shapes = foresee(engine.signature, {name: a.shape for name, a in taken.items()})
            targets = {
                name: outputs[name] if name in outputs else self._planned(name, shapes.get(name))
                for name in step.gives
            }
            try:
                given = engine.run(taken, targets)
            except (EngineFault, EngineLost, OutOfMemory) as fault:
                # The same class: callers cut a batch, or give the engine up, by the class alone.
                raise type(fault)(f"stage '{step.stage}': {fault}") from fault
            # Only what an engine allocated may lie otherwise; a later stage needs C order.
            arrays.update((name, np.asarray(array, order="C")) for name, array in given.items())
        return {name: arrays[name] for name in outputs}

    def _handed_over(self, shapes: Mapping[str, Shape]) -> dict[str, int | None]:
        """Bytes of each tensor that only stages see; None where its size is not foreseen."""
        sizes: dict[str, int | None] = {}
        for name, span in self._wiring.spans.items():
            if name in self._asked:  # in the caller's array, which the caller plans
                continue
            foreseen = name in shapes and span.tensor.dtype is not DType.BYTES
            dtype = span.tensor.dtype.numpy
            sizes[name] = math.prod(shapes[name]) * dtype.itemsize if foreseen else None
        return sizes

    def _planned(self, name: str, shape: Shape | None) -> Array | None:
        """The planned array for a tensor between stages; None if its engine must allocate it."""
        offset = self._handover.packing.offsets.get(name)
        if shape is not None and offset is not None:
            dtype = self._wiring.spans[name].tensor.dtype.numpy
            nbytes = math.prod(shape) * dtype.itemsize
            if nbytes <= self._handover.sizes[name]:
                return self._arena[offset : offset + nbytes].view(dtype).reshape(shape)
        return None

    def weights_bytes(self) -> int:
        return sum(engine.weights_bytes() for engine in self._stages.values())

    def device_io_bytes(self) -> int:
        return sum(engine.device_io_bytes() or 0 for engine in self._stages.values())

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        """What each stage holds in its turn, and what they hand over.

        What a stage holds whose input sizes only an execution tells counts as one unsized result.
        """
        known = self._wiring.shapes(shapes)
        lifetimes: list[Lifetime] = []
        unsized = 0
        # Stages run one after another, so their steps are counted through: what one holds inside
        # and what another does are never there together.
        turns: list[tuple[int, int]] = []  # the first and last step of each stage
        step = 0
        for stage, engine in self._stages.items():
            names = [tensor.name for tensor in engine.signature.inputs]
            own: Intermediates | None = Intermediates((), unsized=1)
            if known.keys() >= set(names):
                own = engine.intermediates({name: known[name] for name in names})
            if own is None:
                return None
            unsized += own.unsized
            for one in own.lifetimes:
                name = f"{stage}/{one.name}"
                lifetimes.append(Lifetime(name, one.nbytes, step + one.first, step + one.last))
            last = max((one.last for one in own.lifetimes), default=0)
            turns.append((step, step + last))
            step += last + 1
        for name, nbytes in self._handed_over(known).items():
            if nbytes is None:
                unsized += 1
            else:
                span = self._wiring.spans[name]
                first, last = turns[span.first][0], turns[span.last][1]
                lifetimes.append(Lifetime(name, nbytes, first, last))
        return Intermediates(tuple(lifetimes), unsized)

    def close(self) -> None:
        if self.arena is not None:
            self.arena.release(self)
        for engine in self._stages.values():
            engine.close()
