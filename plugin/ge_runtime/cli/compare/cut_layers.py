"""Measure the layers of a graph by compiling parts of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ge_runtime.cli.compare.cut_graphs import CutGraph
from ge_runtime.cli.compare.differences import Difference, difference
from ge_runtime.cli.compare.executions import CardGraphs, run_on_cpu
from ge_runtime.cli.compare.report import First, Layer
from ge_runtime.cli.compare.search import first_exceeding
from ge_runtime.specs import Array


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
