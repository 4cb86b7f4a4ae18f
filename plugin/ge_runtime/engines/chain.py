"""Chains: several graphs executed as one, connected by tensor name.

The graphs are the stages of the chain, by name in order of execution. A tensor that one stage
produces and a later stage consumes is passed on as one array, in planned memory.
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
    Estimating,
    GraphTensor,
    InArena,
    Perturbable,
    Shapes,
    Signature,
    Unpadding,
    WorkspaceArena,
)
from ge_runtime.errors import ArtifactFault, EngineFault, EngineLost, OutOfMemory
from ge_runtime.memory.lifetimes import Intermediates, Lifetime, Packing, pack
from ge_runtime.specs import Array, DType, Tensors

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One stage's part in an execution: its name, and the outputs that it must produce."""

    stage: str
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A tensor between stages, and the stages between which it exists, by position from 0."""

    tensor: GraphTensor
    first: int
    """The stage that produces it."""
    last: int
    """The last stage that consumes it."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The connections between stages whose tensors agree. Immutable and thread-safe."""

    stages: Mapping[str, Signature]
    signature: Signature
    """The signature of the chain: inputs that no stage produces, and the outputs of all stages.

    It has no symbols, because the symbols of different stages are unrelated.
    """
    spans: Mapping[str, Span]
    """The spans of the tensors that are passed between stages, by tensor name."""

    @classmethod
    def of(cls, stages: Mapping[str, Signature], requested: Collection[str]) -> Wiring:
        """Connect stages: each input comes from an earlier stage or from the caller.

        Args:
            stages: The signatures by stage name, in order of execution.
            requested: The outputs that the caller will request.

        Raises:
            ArtifactFault: Lists all faults: a type, rank or size on which two stages disagree, a
                name that two tensors have, a stage whose outputs are not used.
        """
        joiner = _Joiner()
        for position, (stage, signature) in enumerate(stages.items()):
            joiner.add(position, stage, signature)
        if len(stages) > 1:  # `Contract` checks the outputs of a single graph
            joiner.check_used(stages, requested)
        if joiner.faults:
            lines = "".join(f"\n  - {fault}" for fault in joiner.faults)
            raise ArtifactFault(f"the stages {', '.join(stages)} do not fit together:{lines}")
        signature = Signature(tuple(joiner.inputs.values()), tuple(joiner.outputs.values()))
        return cls(dict(stages), signature, joiner.spans)

    def steps(self, outputs: Iterable[str]) -> list[Step]:
        """Return the steps that produce these outputs, in order of execution."""
        # From the last stage to the first: earlier stages must produce the inputs of a stage.
        wanted, steps = set(outputs), []
        for stage, signature in reversed(list(self.stages.items())):
            required = tuple(tensor.name for tensor in signature.outputs if tensor.name in wanted)
            if required:
                wanted.update(tensor.name for tensor in signature.inputs)
                steps.append(Step(stage, required))
        return steps[::-1]

    def shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of the chain's inputs, and all shapes that follow from them.

        A tensor is missing if one of its sizes is not known before the execution.
        """
        known = dict(inputs)
        for signature in self.stages.values():
            known.update(infer_shapes(signature, known))
        return known


def infer_shapes(signature: Signature, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the shapes of the outputs that follow from the shapes of the inputs.

    The shape of an output follows if each of its sizes is fixed or has the symbol of an input's
    size.

    Args:
        signature: The graph's inputs and outputs.
        inputs: Known shapes by tensor name; other tensors than the graph's inputs are ignored.
    """
    sizes: dict[str | None, int] = {}
    for tensor in signature.inputs:
        # Not strict: symbols are empty if the graph names no size, and shapes may be unknown.
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
    """Connects stages one by one, and collects the faults."""

    def __init__(self) -> None:
        self.inputs: dict[str, GraphTensor] = {}
        self.outputs: dict[str, GraphTensor] = {}
        self.spans: dict[str, Span] = {}
        self.faults: list[str] = []
        self._owners: dict[str, str] = {}  # tensor: the first stage that has it
        self._origins: dict[str, int] = {}  # output: the position of the stage that produces it

    def add(self, position: int, stage: str, signature: Signature) -> None:
        for tensor in signature.inputs:
            self._add_input(position, f"stage '{stage}', input '{tensor.name}'", stage, tensor)
        for tensor in signature.outputs:
            self._add_output(position, f"stage '{stage}', output '{tensor.name}'", stage, tensor)

    def check_used(self, stages: Mapping[str, Signature], requested: Collection[str]) -> None:
        """Add a fault for each stage whose outputs are not used.

        Inputs count as used: a stage that produces a tensor too late has a fault already.
        """
        wanted = {*requested, *self.spans, *self.inputs}
        for stage, signature in stages.items():
            names = [tensor.name for tensor in signature.outputs]
            if wanted.isdisjoint(names):
                self.faults.append(
                    f"stage '{stage}': found outputs {', '.join(names)}, expected one that "
                    "config.pbtxt declares or that a later stage takes"
                )

    def _add_input(self, position: int, place: str, stage: str, tensor: GraphTensor) -> None:
        name = tensor.name
        owner = self._owners.setdefault(name, stage)
        if name in self.outputs:
            first = self._origins[name]
            self.spans[name] = Span(self.outputs[name], first, position)
            self._compare(place, tensor, self.outputs[name], f"the output of stage '{owner}'")
        elif name in self.inputs:
            self._compare(place, tensor, self.inputs[name], f"the input of stage '{owner}'")
            self.inputs[name] = _with_sizes_of(self.inputs[name], tensor)
        else:
            # Symbols are local to a graph: "n" of two stages may be different sizes.
            self.inputs[name] = replace(tensor, symbols=())

    def _add_output(self, position: int, place: str, stage: str, tensor: GraphTensor) -> None:
        name = tensor.name
        owner = self._owners.setdefault(name, stage)
        if name in self.outputs:
            found = f"the name of an output of stage '{owner}'"
            self.faults.append(f"{place}: found {found}, expected a name of its own")
        elif name in self.inputs:
            found = f"the name of an input of stage '{owner}', which is earlier"
            expected = "stages in the order of their data, or a name of its own"
            self.faults.append(f"{place}: found {found}, expected {expected}")
        else:
            self.outputs[name] = replace(tensor, symbols=())
            self._origins[name] = position

    def _compare(self, place: str, found: GraphTensor, known: GraphTensor, source: str) -> None:
        if found.dtype is not known.dtype or not _fit(found.dims, known.dims):
            self.faults.append(f"{place}: found {found}, expected {known}, {source}")


def _fit(one: tuple[int | None, ...] | None, other: tuple[int | None, ...] | None) -> bool:
    """Return whether there is a shape that fits both."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(one, other, strict=True)
    )


def _with_sizes_of(tensor: GraphTensor, other: GraphTensor) -> GraphTensor:
    """Return `tensor` with the sizes that only `other` declares."""
    if tensor.dims is None or other.dims is None:
        return replace(tensor, dims=other.dims if tensor.dims is None else tensor.dims)
    pairs = zip(tensor.dims, other.dims, strict=False)  # ranks differ only after a fault
    return replace(tensor, dims=tuple(b if a is None else a for a, b in pairs))


@dataclass(frozen=True, slots=True)
class Handover:
    """The memory plan of the tensors between stages, in one arena."""

    packing: Packing
    sizes: Mapping[str, int]
    """The reserved bytes by tensor name."""


_NOTHING: Final = Handover(Packing({}, 0, 0), {})


class ChainEngine:
    """An engine that executes the engines of several stages, connected as in `Wiring.of`.

    A tensor between stages is allocated by the engine that produces it if `bind` was not called,
    if it is larger than planned, or if its size is known only after the execution.
    """

    def __init__(
        self, stages: Mapping[str, Engine], wiring: Wiring, requested: Collection[str]
    ) -> None:
        self._stages = dict(stages)
        self._wiring = wiring
        self._requested = frozenset(requested)
        self._handover = _NOTHING
        self._arena: Array = np.empty(0, np.uint8)

    @classmethod
    def of(cls, stages: Mapping[str, Engine], requested: Collection[str]) -> ChainEngine:
        """Make a chain of open engines.

        Args:
            stages: The engines by stage name, in order of execution. The chain closes them.
            requested: The outputs that executions will request, in arrays of the caller.

        Raises:
            ArtifactFault: The stages do not fit together; the engines stay open.
        """
        signatures = {stage: engine.signature for stage, engine in stages.items()}
        return cls(stages, Wiring.of(signatures, requested), requested)

    @property
    def signature(self) -> Signature:
        """The chain's inputs, and the outputs of all stages."""
        return self._wiring.signature

    @property
    def shapes(self) -> Sequence[Shapes] | None:
        """None: the stages only execute shapes that fit together."""
        return None

    @property
    def lost(self) -> bool:
        """True if one of the stages is lost."""
        return any(engine.lost for engine in self._stages.values())

    @property
    def unpadded(self) -> bool:
        """See `Unpadding.unpadded`: true if a stage removes padding."""
        stages = self._stages.values()
        return any(isinstance(engine, Unpadding) and engine.unpadded for engine in stages)

    @property
    def arena(self) -> WorkspaceArena | None:
        """The arena of the stages, if they all use the same one."""
        arenas = {
            engine.arena if isinstance(engine, InArena) else None
            for engine in self._stages.values()
        }
        return arenas.pop() if len(arenas) == 1 else None

    def plan(self, largest: Iterable[Shapes]) -> Handover:
        """Plan the memory of tensors between stages, for executions on inputs up to these shapes.

        Tensors that are never needed at the same time share memory.
        """
        sizes: dict[str, int] = {}
        for inputs in largest:
            for name, nbytes in self._handover_bytes(self._wiring.shapes(inputs)).items():
                if nbytes is not None:
                    sizes[name] = max(nbytes, sizes.get(name, 0))
        spans = self._wiring.spans
        packing = pack(
            Lifetime(name, nbytes, spans[name].first, spans[name].last)
            for name, nbytes in sizes.items()
        )
        return Handover(packing, sizes)

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Allocate the tensors between stages from `memory`."""
        handover = self.plan(largest)
        self._arena = memory.allocate("between stages", handover.packing.peak).memory
        self._handover = handover

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """Execute only the stages that the requested outputs depend on."""
        arrays = dict(inputs)
        for step in self._wiring.steps(outputs):
            engine = self._stages[step.stage]
            given = {tensor.name: arrays[tensor.name] for tensor in engine.signature.inputs}
            # From this execution's arrays, not from the plan: sizes that depend on data are known
            # after the earlier stages have run.
            shapes = infer_shapes(engine.signature, {name: a.shape for name, a in given.items()})
            targets = {
                name: outputs[name] if name in outputs else self._planned(name, shapes.get(name))
                for name in step.outputs
            }
            try:
                results = engine.run(given, targets)
            except (EngineFault, EngineLost, OutOfMemory) as fault:
                # The same class: callers decide by the class whether to retry with less or to stop.
                raise type(fault)(f"stage '{step.stage}': {fault}") from fault
            # Arrays that an engine allocated may not be C-contiguous, which later stages require.
            arrays.update((name, np.asarray(array, order="C")) for name, array in results.items())
        return {name: arrays[name] for name in outputs}

    def _handover_bytes(self, shapes: Mapping[str, Shape]) -> dict[str, int | None]:
        """Return the bytes of each tensor between stages; None if its size is not known."""
        sizes: dict[str, int | None] = {}
        for name, span in self._wiring.spans.items():
            if name in self._requested:  # it is in the caller's array
                continue
            foreseen = name in shapes and span.tensor.dtype is not DType.BYTES
            dtype = span.tensor.dtype.numpy
            sizes[name] = math.prod(shapes[name]) * dtype.itemsize if foreseen else None
        return sizes

    def _planned(self, name: str, shape: Shape | None) -> Array | None:
        """Return a planned array for a tensor between stages; None: its engine allocates it."""
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
        """Return the intermediate results of all stages, and the tensors between stages.

        A stage whose input sizes are known only after an execution counts as one unsized result.
        """
        known = self._wiring.shapes(shapes)
        lifetimes: list[Lifetime] = []
        unsized = 0
        # Stages run one after another, so their steps are numbered consecutively: the intermediate
        # results of two stages never exist at the same time.
        ranges: list[tuple[int, int]] = []  # the first and last step of each stage
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
            ranges.append((step, step + last))
            step += last + 1
        for name, nbytes in self._handover_bytes(known).items():
            if nbytes is None:
                unsized += 1
            else:
                span = self._wiring.spans[name]
                first, last = ranges[span.first][0], ranges[span.last][1]
                lifetimes.append(Lifetime(name, nbytes, first, last))
        return Intermediates(tuple(lifetimes), unsized)

    def flops(self, shapes: Shapes) -> int | None:
        """Estimate the operations of all stages; None if a stage's operations are unknown."""
        known = self._wiring.shapes(shapes)
        total = 0
        for engine in self._stages.values():
            names = [tensor.name for tensor in engine.signature.inputs]
            if not isinstance(engine, Estimating) or not known.keys() >= set(names):
                return None
            own = engine.flops({name: known[name] for name in names})
            if own is None:
                return None
            total += own
        return total

    def perturbed(self, seed: int) -> ChainEngine | None:
        """See `Perturbable.perturbed`; None if a stage has no variant."""
        stages: dict[str, Engine] = {}
        try:
            for stage, engine in self._stages.items():
                own = engine.perturbed(seed) if isinstance(engine, Perturbable) else None
                if own is None:
                    break
                stages[stage] = own
            else:
                return ChainEngine(stages, self._wiring, self._requested)
        except BaseException:
            _close(stages)
            raise
        _close(stages)
        return None

    def close(self) -> None:
        if self.arena is not None:
            self.arena.release(self)
        for engine in self._stages.values():
            engine.close()


def _close(stages: Mapping[str, Engine]) -> None:
    for engine in stages.values():
        engine.close()
