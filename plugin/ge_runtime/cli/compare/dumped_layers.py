"""Layers by the card's own dump: one execution tells what each operator of the file gave.

The compiler renames, fuses and inserts operators. What one gave is a layer's tensor if the dump
says so (`original_op`), if it has the name of the layer's node, or if its name is those of several
nodes one after another, as fused ones are called: then it gave what the last of them gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ge_runtime.cli.compare.cut_graphs import CutGraph
from ge_runtime.cli.compare.differences import Difference, difference
from ge_runtime.cli.compare.executions import Cpu
from ge_runtime.cli.compare.report import First, Layer
from ge_runtime.cli.dump_files import DumpedOperator, DumpedTensor
from ge_runtime.specs import Array

if TYPE_CHECKING:
    from onnx import NodeProto


class DumpedLayers:
    """The tensors of a graph, measured by a dump of one execution on the same inputs."""

    def __init__(
        self,
        graph: CutGraph,
        cpu: Cpu,
        operators: Sequence[DumpedOperator],
        inputs: Mapping[str, Array],
        limit: float,
    ) -> None:
        """Raises EngineFault if the graph cannot be computed."""
        self._graph = graph
        self._cpu = cpu
        self._inputs = inputs
        self._limit = limit
        told = Matches(graph.named(), operators)
        self.others: Sequence[str] = told.others
        """Operators of the card that are no layer of the graph."""
        wanted = [name for name in graph.tensors if name in told.outputs or name in told.inputs]
        self._expected = cpu.run(graph.computing(wanted, None), inputs) if wanted else {}
        self._card: dict[str, Array] = {}
        """The card's tensors by their names in the graph: given, or at least taken by others."""
        self._found: dict[str, Difference] = {}
        for name, expected in self._expected.items():
            if not isinstance(expected, np.ndarray):  # a sequence has no place on a card
                continue
            for source in (told.outputs, told.inputs):
                array = source[name].shaped(expected.shape) if name in source else None
                if array is not None:
                    self._card[name] = _as(array, expected)
                    self._found[name] = difference(self._card[name], expected)
                    break

    @property
    def count(self) -> int:
        return len(self._graph.tensors)

    @property
    def measured(self) -> list[Layer]:
        return [self._layer(name) for name in self._graph.tensors if name in self._found]

    @property
    def untold(self) -> list[Layer]:
        """Those that no operator of the card has: fused, or computed in another way."""
        return [self._layer(name) for name in self._graph.tensors if name not in self._found]

    def look(self, outputs: Mapping[str, Difference]) -> First | None:
        """The first layer that is beyond, of those that an output which is beyond depends on."""
        graph = self._graph
        wrong = [n for n, own in outputs.items() if own.beyond(self._limit) and graph.has(n)]
        for name in wrong:
            self._found.setdefault(name, outputs[name])
        among = {each for name in wrong for each in (*graph.before(name), name)}
        for name in graph.tensors:
            if name in among and name in self._found and self._found[name].beyond(self._limit):
                return First(
                    self._layer(name),
                    self._alone(name),
                    "the card had",
                    [self._layer(each) for each in self._unseen(name)],
                )
        return None

    def _unseen(self, name: str) -> list[str]:
        """What lies between a tensor and those before it that were measured."""
        found: dict[str, None] = {}
        rest = self._graph.taken(name)
        while rest:
            each = rest.pop()
            if each not in self._found and each not in found:
                found[each] = None
                rest += self._graph.taken(each)
        return sorted(found, key=self._graph.place)

    def _alone(self, name: str) -> Difference | None:
        """What its node makes on the CPU of what the card had; None where that is not all told."""
        graph = self._graph
        if name not in self._card or any(each not in self._card for each in graph.taken(name)):
            return None
        fixed = graph.fixed(name)
        values = dict(self._inputs) | self._card | {name: self._expected[name]}
        if fixed:
            values |= self._cpu.run(graph.computing(fixed, None), self._inputs)
        cut = graph.alone(name, values)
        if cut is None:
            return None
        model, feeds = cut
        return difference(self._card[name], self._cpu.run(model, feeds)[name])

    def _layer(self, name: str) -> Layer:
        node = self._graph.node(name)
        own = self._found.get(name, Difference(math.nan, math.nan, math.nan))
        return Layer(self._graph.place(name), name, node.name or name, node.op_type, own)


class Matches:
    """Which dumped tensor is which of the graph."""

    def __init__(self, nodes: Mapping[str, NodeProto], operators: Iterable[DumpedOperator]) -> None:
        """nodes: of the graph, in its order, by the names that the compiler knows them by."""
        self.outputs: dict[str, DumpedTensor] = {}
        """Name in the graph -> what an operator gave."""
        self.inputs: dict[str, DumpedTensor] = {}
        """Name in the graph -> what an operator took."""
        self.others: list[str] = []
        places = {name: place for place, name in enumerate(nodes)}
        renamed = []
        for operator in operators:
            node = nodes.get(operator.name)
            if node is None:
                renamed.append(operator)
                continue
            self._give(node, operator)
            taken = [name for name in node.input if name]
            if len(taken) == len(operator.inputs):
                for name, tensor in zip(taken, operator.inputs, strict=True):
                    self.inputs.setdefault(name, tensor)
        for operator in renamed:  # what has a node's own name comes first
            known = self._originals(nodes, operator)
            parts = parted(operator.name, nodes)
            if parts and not known:
                self._give(nodes[max(parts, key=places.__getitem__)], operator)
            elif not known:
                self.others.append(operator.name)

    def _originals(self, nodes: Mapping[str, NodeProto], operator: DumpedOperator) -> bool:
        """Whether the dump says of any output whose it is."""
        known = False
        for tensor in operator.outputs:
            node = nodes.get(tensor.original)
            if node is not None and tensor.original_index < len(node.output):
                self.outputs.setdefault(node.output[tensor.original_index], tensor)
                known = True
        return known

    def _give(self, node: NodeProto, operator: DumpedOperator) -> None:
        for name, tensor in zip(node.output, operator.outputs, strict=False):
            if name:
                self.outputs.setdefault(name, tensor)


def parted(text: str, names: Iterable[str]) -> list[str]:
    """Names that make up the text, one after another; none where they do not."""
    known = {name for name in names if name}
    lengths = sorted({len(name) for name in known}, reverse=True)
    before: dict[int, str | None] = {0: None}
    """Where a name may end -> the name that ends there."""
    for at in range(len(text)):
        if at in before:
            for length in lengths:
                if text[at : at + length] in known and at + length <= len(text):
                    before.setdefault(at + length, text[at : at + length])
    found: list[str] = []
    at = len(text)
    while at and (name := before.get(at)):
        found.insert(0, name)
        at -= len(name)
    return found if at == 0 else []


def _as(array: Array, expected: Array) -> Array:
    """A card has FP16 for FP32, and often INT32 for INT64."""
    kinds = array.dtype.kind + expected.dtype.kind
    same = kinds == "ff" or set(kinds) <= {*"iub"}
    return array.astype(expected.dtype) if same else array
