"""Several graphs, executed one after another as one engine: the stages of a pipeline.

What one stage gives and a later one takes is handed over as the same array, which lies where it
was planned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device
from ge_runtime.engines.base import Engine, Shapes, Signature
from ge_runtime.engines.wiring import Shape, Wiring, foresee
from ge_runtime.errors import EngineFault, EngineLost, OutOfMemory
from ge_runtime.memory.lifetimes import Intermediates, Lifetime, Packing, pack
from ge_runtime.specs import Array, DType, Tensors


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
            shapes = foresee(engine.signature, {name: a.shape for name, a in taken.items()})
            targets = {
                name: outputs[name] if name in outputs else self._place(name, shapes.get(name))
                for name in step.gives
            }
            try:
                given = engine.run(taken, targets)
            except (EngineFault, EngineLost, OutOfMemory) as fault:
                raise type(fault)(f"stage '{step.stage}': {fault}") from fault
            # Only what an engine allocated may lie otherwise; a later stage needs C order.
            arrays.update((name, np.asarray(array, order="C")) for name, array in given.items())
        return {name: arrays[name] for name in outputs}

    def _handed_over(self, shapes: Mapping[str, Shape]) -> dict[str, int | None]:
        """Bytes of each tensor that only stages see; None where its size is not foreseen."""
        sizes: dict[str, int | None] = {}
        for name, span in self._wiring.spans.items():
            if name in self._asked:
                continue
            foreseen = name in shapes and span.tensor.dtype is not DType.BYTES
            dtype = span.tensor.dtype.numpy
            sizes[name] = math.prod(shapes[name]) * dtype.itemsize if foreseen else None
        return sizes

    def _place(self, name: str, shape: Shape | None) -> Array | None:
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
        for engine in self._stages.values():
            engine.close()
