"""How the stages of a chain fit together, by tensor name: signatures in, decisions out.

No engine is executed here and no byte allocated. Stages are known by name, in order of execution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeAlias

from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.errors import ArtifactFault

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
    """Of the whole: the inputs that no stage gives, and all outputs of all stages.

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
        sizes.update(zip(tensor.symbols, inputs.get(tensor.name, ()), strict=False))
    sizes.pop(None, None)
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
