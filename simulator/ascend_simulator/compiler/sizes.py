"""The device memory of a compiled model, overestimated.

    occupied(n)  = n rounded up to 32, plus 32, rounded up to 512
    weights      = sum of occupied(bytes) over all constants of the graph
    values(gear) = end of the last place, when each value of the graph has occupied(bytes) to itself
                   from the node that makes it to the last that reads it
    own(gear)    = the most that one node's results and inputs occupy, for its internal needs
    io(gear)     = sum of occupied(bytes) over inputs, outputs and the gear input
    work         = max over gears of values + own + io, plus 1 MiB

The 32 bytes are the rule for slices of device memory that operators use; GE aligns its own to 512.
Each choice gives a larger result than a compiler's. All gears are placed, not only the one with the
largest inputs. No operator is assumed to be fused, to overwrite its input or to return a view of
it. Inputs and outputs are counted as if the caller provided none. An operator's internal memory is
as large as its inputs and results. For a device this last point is an inference: an operator may
need more.
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
"""The tasks and descriptors of every model with a memory plan."""


@dataclass(frozen=True, slots=True)
class Step:
    """The names of the values that one node reads and makes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The offset of a value, and its first and last step (inclusive)."""

    offset: int
    size: int
    first: int
    last: int


def occupied(nbytes: int) -> int:
    """Return the bytes that `nbytes` occupy in a block that operators use."""
    return _rounded(_rounded(nbytes, _STEP) + _STEP, _ALIGNMENT)


def values_bytes(steps: Sequence[Step], nbytes: Mapping[str, int], *, reuse: bool) -> int:
    """Return values + own, as defined above.

    `nbytes` has the sizes of intermediate values; a value that is not in it is a constant, an input
    or an output. Without `reuse` each value has a place for the whole run.
    """
    placed = places(steps, nbytes, reuse=reuse)
    own = max((_touched(step, nbytes) for step in steps), default=0)
    return max((place.offset + place.size for place in placed.values()), default=0) + own


def places(
    steps: Sequence[Step], nbytes: Mapping[str, int], *, reuse: bool = True
) -> dict[str, Place]:
    """Return a place for each value; values alive at the same time never overlap.

    The largest value is placed first, each at the lowest offset that is free during its life.
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
    """Return the bytes of all constants, including those in nodes and subgraphs."""
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
