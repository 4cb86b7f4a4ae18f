"""The device memory that a compiled model is said to need: an estimate from above.

    occupied(n)  = n rounded up to 32, plus 32, rounded up to 512
    weights      = sum of occupied(bytes) over all constants of the graph
    values(gear) = end of the last place, when each value of the graph has occupied(bytes) to itself
                   from the node that makes it to the last that reads it
    own(gear)    = the most that one node's results and inputs occupy, for what it needs inside
    io(gear)     = sum of occupied(bytes) over inputs, outputs and the gear input
    work         = max over gears of values + own + io, plus 1 MiB

The 32 bytes are the rule for slices of device memory that operators use; 512 is what GE aligns its
own to. Each choice errs on the large side of a compiler's: every gear is placed and not only the
one with the largest inputs, no operator is taken to be fused, to write over its input or to show
its input's bytes, inputs and outputs are counted as if the caller gave none, and an operator is
allowed as much again as it touches. Against a device this is an inference: an operator may there
need more inside than its inputs and results together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from onnx import numpy_helper

from ascend_simulator.compiler.inference import subgraphs

ModelProto: TypeAlias = Any
GraphProto: TypeAlias = Any
TensorProto: TypeAlias = Any

_STEP: Final = 32
_ALIGNMENT: Final = 512
FIXED_BYTES: Final = 1 << 20
"""Of every model with a plan: what its tasks and descriptors take."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one node reads and makes, by name."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies, and from which step to which, both included."""

    offset: int
    size: int
    first: int
    last: int


def occupied(nbytes: int) -> int:
    """What `nbytes` take of a block that operators use."""
    return _rounded(_rounded(nbytes, _STEP) + _STEP, _ALIGNMENT)


def values_bytes(steps: Sequence[Step], nbytes: Mapping[str, int], *, reuse: bool) -> int:
    """The sum of values and own, as above.

    nbytes: of what takes part; a value that is not in it is a constant, an input or an output.
    reuse: False gives each value a place for the whole run.
    """
    placed = places(steps, nbytes, reuse=reuse)
    own = max((_touched(step, nbytes) for step in steps), default=0)
    return max((place.offset + place.size for place in placed.values()), default=0) + own


def places(
    steps: Sequence[Step], nbytes: Mapping[str, int], *, reuse: bool = True
) -> dict[str, Place]:
    """A place for each value that a step makes; those alive at one time never overlap.

    The largest is placed first, each at the lowest offset that is free while it lives.
    """
    first = {name: index for index, step in enumerate(steps) for name in step.writes}
    last = dict(first)
    for index, step in enumerate(steps):
        last.update((name, index) for name in step.reads if name in first)
    placed: dict[str, Place] = {}
    for name in sorted(first.keys() & nbytes.keys(), key=lambda name: (-nbytes[name], name)):
        span = (first[name], last[name]) if reuse else (0, len(steps))
        size = occupied(nbytes[name])
        beside = [
            each for each in placed.values() if each.first <= span[1] and span[0] <= each.last
        ]
        placed[name] = Place(_lowest(size, beside), size, *span)
    return placed


def _lowest(size: int, taken: Iterable[Place]) -> int:
    offset = 0
    for place in sorted(taken, key=lambda place: place.offset):
        if offset + size <= place.offset:
            break
        offset = max(offset, place.offset + place.size)
    return offset


def _touched(step: Step, nbytes: Mapping[str, int]) -> int:
    return sum(occupied(nbytes[name]) for name in {*step.reads, *step.writes} & nbytes.keys())


def _rounded(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step


# -- weights -------------------------------------------------------------------------------------


def weight_bytes(model: ModelProto) -> int:
    """What all constants occupy, those in nodes and subgraphs too."""
    return sum(
        occupied(int(numpy_helper.to_array(tensor).nbytes)) for tensor in _constants(model.graph)
    )


def _constants(graph: GraphProto) -> list[TensorProto]:
    found = list(graph.initializer)
    for sparse in graph.sparse_initializer:
        found += [sparse.values, sparse.indices]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                found.append(attribute.t)
            found.extend(attribute.tensors)
        for inner in subgraphs(node):
            found += _constants(inner)
    return found
