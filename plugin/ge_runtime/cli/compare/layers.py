"""Measure the layers of a graph by compiling parts of it, or with the card's dump.

The compiler renames, fuses and inserts operators. An operator's output is matched to a tensor of
the graph in one of three ways: the dump names the original operator (`original_op`), the operator
has the name of a node, or its name is a sequence of node names, as for fused operators. In the
last case its output is that of the last node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ge_runtime.cli.compare.cut_graphs import CutGraph, first_exceeding
from ge_runtime.cli.compare.executions import CardGraphs, run_on_cpu
from ge_runtime.cli.compare.report import UNKNOWN, Difference, First, Layer, difference
from ge_runtime.cli.dump_files import DumpedOperator, DumpedTensor
from ge_runtime.specs import Array

if TYPE_CHECKING:
    from onnx import NodeProto


class CutLayers:
    """Measures the tensors of a graph, each at most once, by compiling parts of the graph."""

    def __init__(
        self, graph: CutGraph, card: CardGraphs, inputs: Mapping[str, Array], limit: float
    ) -> None:
        self._graph = graph
        self._card = card
        self._inputs = inputs
        self._limit = limit
        self._found: dict[str, Difference] = {}

    @property
    def measured(self) -> list[Layer]:
        """The measured layers in computation order."""
        return sorted(map(self._layer, self._found), key=lambda layer: layer.place)

    def search(self, outputs: Mapping[str, Difference], *, every: bool, cuts: int) -> First | None:
        """Return the first layer that exceeds the limit; None if no output exceeds it.

        Args:
            outputs: the differences of the graph's outputs.
            every: measure all layers first.
            cuts: the most tensors that one compiled part returns.
        """
        if every:
            tensors = self._graph.tensors
            for start in range(0, len(tensors), cuts):
                self.measure(tensors[start : start + cuts])
        for name, own in outputs.items():
            exceeds = own.exceeds(self._limit) and self._graph.has(name)
            if exceeds and self.measure([name])[name]:
                found = first_exceeding(self._graph, name, self.measure, cuts)
                return First(self._layer(found), self._alone(found))
        return None

    def measure(self, names: Sequence[str]) -> dict[str, bool]:
        """Return whether each of these tensors exceeds the limit."""
        new = [name for name in names if name not in self._found]
        if new:
            expected = run_on_cpu(self._graph.computing(new, None), self._inputs)
            # ONNX tensors of the type sequence cannot be outputs on a card. A sequence counts as
            # equal. The tensors of which it consists are measured.
            self._found |= dict.fromkeys(new, Difference(math.nan, 0.0, math.nan))
            arrays = {n: array for n, array in expected.items() if isinstance(array, np.ndarray)}
            if arrays:
                part = self._graph.computing([*arrays], arrays)
                found = self._card.run(part, self._inputs)
                self._found |= {n: difference(found[n], array) for n, array in arrays.items()}
        return {name: self._found[name].exceeds(self._limit) for name in names}

    def _alone(self, name: str) -> Difference | None:
        """Execute one layer alone on the card with inputs from the CPU, and return its error.

        Returns None if the layer cannot be executed alone.
        """
        graph = self._graph
        needed = [*graph.inputs_of(name), *graph.fixed(name), name]
        values = {**self._inputs, **run_on_cpu(graph.computing(needed, None), self._inputs)}
        cut = graph.alone(name, values)
        if cut is None:
            return None
        model, feeds = cut
        return difference(self._card.run(model, feeds)[name], values[name])

    def _layer(self, name: str) -> Layer:
        return self._graph.layer(name, self._found[name])


class DumpedLayers:
    """The tensors of a graph, measured with a dump of one execution on the same inputs."""

    def __init__(
        self,
        graph: CutGraph,
        operators: Sequence[DumpedOperator],
        inputs: Mapping[str, Array],
        limit: float,
    ) -> None:
        """Compute the expected tensors on the CPU. Raises EngineFault."""
        self._graph = graph
        self._inputs = inputs
        self._limit = limit
        matches = Matches(graph.named(), operators)
        self.unmatched_operators: Sequence[str] = matches.unmatched
        """Operators of the card that are not in the graph."""
        names = [name for name in graph.tensors if name in matches.outputs | matches.inputs]
        self._expected = run_on_cpu(graph.computing(names, None), inputs) if names else {}
        self._card: dict[str, Array] = {}
        self._found: dict[str, Difference] = {}
        for name, expected in self._expected.items():
            if not isinstance(expected, np.ndarray):  # a card has no sequences
                continue
            for tensors in (matches.outputs, matches.inputs):
                array = tensors[name].shaped(expected.shape) if name in tensors else None
                if array is not None:
                    self._card[name] = _as_type(array, expected)
                    self._found[name] = difference(self._card[name], expected)
                    break

    @property
    def measured(self) -> list[Layer]:
        """The measured layers in computation order."""
        return [self._layer(name) for name in self._graph.tensors if name in self._found]

    @property
    def unmatched(self) -> list[Layer]:
        """Layers without an operator on the card: fused, or computed in another way."""
        return [self._layer(name) for name in self._graph.tensors if name not in self._found]

    def search(self, outputs: Mapping[str, Difference]) -> First | None:
        """Return the first layer beyond the limit that an output beyond the limit depends on."""
        graph = self._graph
        wrong = [n for n, own in outputs.items() if own.exceeds(self._limit) and graph.has(n)]
        for name in wrong:
            self._found.setdefault(name, outputs[name])
        causes = {each for name in wrong for each in (*graph.before(name), name)}
        for name in graph.tensors:
            if name in causes and name in self._found and self._found[name].exceeds(self._limit):
                unmeasured = [self._layer(each) for each in self._unmeasured_before(name)]
                return First(self._layer(name), self._alone(name), "card", unmeasured)
        return None

    def _unmeasured_before(self, name: str) -> list[str]:
        """Return the tensors between a tensor and the last measured ones before it."""
        found: set[str] = set()
        rest = self._graph.inputs_of(name)
        while rest:
            each = rest.pop()
            if each not in self._found and each not in found:
                found.add(each)
                rest += self._graph.inputs_of(each)
        return [each for each in self._graph.tensors if each in found]

    def _alone(self, name: str) -> Difference | None:
        """Return the error of one layer on the card's inputs, if the dump contains all of them."""
        graph = self._graph
        if any(each not in self._card for each in (name, *graph.inputs_of(name))):
            return None
        values = {**self._inputs, **self._card, name: self._expected[name]}
        if fixed := graph.fixed(name):
            values |= run_on_cpu(graph.computing(fixed, None), self._inputs)
        cut = graph.alone(name, values)
        if cut is None:
            return None
        model, feeds = cut
        return difference(self._card[name], run_on_cpu(model, feeds)[name])

    def _layer(self, name: str) -> Layer:
        return self._graph.layer(name, self._found.get(name, UNKNOWN))


class Matches:
    """The dumped tensors by their names in the graph."""

    def __init__(self, nodes: Mapping[str, NodeProto], operators: Iterable[DumpedOperator]) -> None:
        """Match the operators to nodes, which are in the graph's order."""
        self.outputs: dict[str, DumpedTensor] = {}
        """Tensors that an operator returned."""
        self.inputs: dict[str, DumpedTensor] = {}
        """Tensors that an operator received."""
        self.unmatched: list[str] = []
        """Names of the operators that match no node."""
        places = {name: place for place, name in enumerate(nodes)}
        renamed = []
        for operator in operators:
            node = nodes.get(operator.name)
            if node is None:
                renamed.append(operator)
                continue
            self._add_outputs(node, operator)
            inputs = [name for name in node.input if name]
            if len(inputs) == len(operator.inputs):
                for name, tensor in zip(inputs, operator.inputs, strict=True):
                    self.inputs.setdefault(name, tensor)
        for operator in renamed:  # after operators with a node's own name, which take precedence
            if self._add_originals(nodes, operator):
                continue
            if parts := split_into_names(operator.name, nodes):
                self._add_outputs(nodes[max(parts, key=places.__getitem__)], operator)
            else:
                self.unmatched.append(operator.name)

    def _add_originals(self, nodes: Mapping[str, NodeProto], operator: DumpedOperator) -> bool:
        """Add the outputs whose original operator is in the graph; return whether any is."""
        known = False
        for tensor in operator.outputs:
            node = nodes.get(tensor.original)
            if node is not None and tensor.original_index < len(node.output):
                self.outputs.setdefault(node.output[tensor.original_index], tensor)
                known = True
        return known

    def _add_outputs(self, node: NodeProto, operator: DumpedOperator) -> None:
        for name, tensor in zip(node.output, operator.outputs, strict=False):
            if name:
                self.outputs.setdefault(name, tensor)


def split_into_names(text: str, names: Iterable[str]) -> list[str]:
    """Return names whose concatenation is the text; empty if there are none."""
    known = {name for name in names if name}
    lengths = sorted({len(name) for name in known}, reverse=True)
    ends: dict[int, str] = {0: ""}
    """Position in the text -> a name that can end there."""
    for start in range(len(text)):
        if start in ends:
            for length in lengths:
                if text[start : start + length] in known and start + length <= len(text):
                    ends.setdefault(start + length, text[start : start + length])
    found: list[str] = []
    end = len(text)
    while name := ends.get(end):
        found.insert(0, name)
        end -= len(name)
    return found if end == 0 else []


def _as_type(array: Array, expected: Array) -> Array:
    """Convert to the CPU's type: a card uses FP16 for FP32, and often INT32 for INT64."""
    kinds = array.dtype.kind + expected.dtype.kind
    convertible = kinds == "ff" or set(kinds) <= {*"iub"}
    return array.astype(expected.dtype) if convertible else array
