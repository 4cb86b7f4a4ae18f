"""Cut an ONNX graph, and find the tensor at which it starts to differ, by bisection.

A cut extracts the part that computes some tensors, or a single node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ge_runtime.cli.compare.report import Difference, Layer
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto


Measure: TypeAlias = Callable[[Sequence[str]], Mapping[str, bool]]
"""Returns for each of these tensors whether it exceeds the limit."""


class Order(Protocol):
    """The tensors of a graph in computation order."""

    def before(self, name: str) -> Sequence[str]:
        """Return all tensors that a tensor depends on, in computation order."""

    def inputs_of(self, name: str) -> Sequence[str]:
        """Return the input tensors of the node that computes a tensor."""


def first_exceeding(order: Order, last: str, measure: Measure, cuts: int) -> str:
    """Return a tensor that exceeds the limit while all inputs of its node are within it.

    Args:
        order: the graph.
        last: a tensor that exceeds the limit.
        measure: called with at most `cuts` tensors, or with all inputs of one node. Errors may
            disappear and reappear along the graph, for example at a maximum.
        cuts: the most tensors for one bisection step.
    """
    exceeding = last
    while True:
        found = _border(order.before(exceeding), exceeding, measure, cuts)
        inputs = order.inputs_of(found)
        verdicts = measure(inputs) if inputs else {}
        wrong = [name for name in inputs if verdicts[name]]
        if not wrong:
            return found
        exceeding = wrong[0]  # computed before `found`, so the loop ends


def _border(names: Sequence[str], last: str, measure: Measure, cuts: int) -> str:
    """Return a tensor beyond the limit that is the first, or follows a tensor within the limit."""
    within, exceeding = -1, len(names)
    while exceeding - within > 1:
        points = spread(within, exceeding, cuts)
        verdicts = measure([names[point] for point in points])
        exceeding = next((point for point in points if verdicts[names[point]]), exceeding)
        within = max((point for point in points if point < exceeding), default=within)
    return names[exceeding] if exceeding < len(names) else last


def spread(low: int, high: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced integers between `low` and `high`, both excluded."""
    between = high - low - 1
    count = min(most, between)
    return [low + (place * (between + 1)) // (count + 1) for place in range(1, count + 1)]


class CutGraph:
    """The graph of a file, and the order of its tensors (`Order`)."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises ArtifactFault."""
        try:
            import onnx
        except ImportError as error:
            raise ArtifactFault(
                f"{path}: the package onnx is not installed; it is needed to cut the graph. "
                "`pip install 'ge-runtime[plan]'`"
            ) from error
        try:
            self._model = onnx.load(path)
        except Exception as error:  # onnx and protobuf raise many classes
            raise ArtifactFault(f"{path}: not a readable ONNX file: {error}") from error
        graph = self._model.graph
        self._initializers = {own.name: own for own in graph.initializer}
        self._inputs = {own.name: own for own in graph.input if own.name not in self._initializers}
        self._makers: dict[str, NodeProto] = {
            name: node for node in graph.node for name in node.output if name
        }
        dependent = set(self._inputs)
        self.tensors: list[str] = []
        """All tensors that depend on the graph's inputs, in computation order."""
        self._places: dict[str, int] = {}
        for node in graph.node:
            if any(name in dependent for name in _inputs_of(node)):
                for name in filter(None, node.output):
                    dependent.add(name)
                    self._places[name] = len(self.tensors)
                    self.tensors.append(name)

    def before(self, name: str) -> list[str]:
        """Return all tensors that a tensor depends on, in computation order."""
        found: set[str] = set()
        rest = self.inputs_of(name)
        while rest:
            each = rest.pop()
            if each not in found:
                found.add(each)
                rest += self.inputs_of(each)
        return sorted(found, key=self._places.__getitem__)

    def named(self) -> dict[str, NodeProto]:
        """Return all nodes by name; a node without a name gets the name that ATC gives it."""
        return {
            node.name or f"{node.op_type}_{place}": node
            for place, node in enumerate(self._model.graph.node)
        }

    def has(self, name: str) -> bool:
        """Return whether this is a tensor that depends on the graph's inputs."""
        return name in self._places

    def inputs_of(self, name: str) -> list[str]:
        """Return the input tensors of a tensor's node that depend on the graph's inputs."""
        return [each for each in _inputs_of(self._makers[name]) if each in self._places]

    def fixed(self, name: str) -> list[str]:
        """Return the input tensors of a tensor's node that nodes compute from constants only."""
        return [
            each
            for each in _inputs_of(self._makers[name])
            if each in self._makers and each not in self._places
        ]

    def layer(self, name: str, own: Difference) -> Layer:
        """Return the layer of a tensor with its difference."""
        node = self._makers[name]
        return Layer(self._places[name], name, node.name or name, node.op_type, own)

    def computing(self, names: Sequence[str], results: Mapping[str, Array] | None) -> ModelProto:
        """Return the part of the graph whose outputs are these tensors.

        Args:
            names: the tensors.
            results: the tensors' values, which give outputs their types and shapes; None to omit
                types and shapes.
        """
        import onnx

        kept = self._needed_for(names)
        nodes = [
            node for node in self._model.graph.node if any(name in kept for name in node.output)
        ]
        used = {name for node in nodes for name in _inputs_of(node)}
        outputs = [
            onnx.helper.make_empty_tensor_value_info(name)
            if results is None
            else _value_info(name, results[name])
            for name in names
        ]
        return self._model_of(nodes, [own for n, own in self._inputs.items() if n in used], outputs)

    def alone(
        self, name: str, values: Mapping[str, Array]
    ) -> tuple[ModelProto, dict[str, Array]] | None:
        """Return a graph of the node that computes a tensor, and the arrays to feed it.

        Args:
            name: the tensor.
            values: all inputs and outputs of the node. Inputs that are computed from constants
                become constants.

        Returns:
            None for a node with subgraphs.
        """
        import onnx

        node = onnx.NodeProto()
        node.CopyFrom(self._makers[name])
        if any(_graphs(attribute) for attribute in node.attribute):
            return None
        feeds: dict[str, Array] = {}
        for place, each in enumerate(node.input):
            if each in self._places or each in self._inputs:
                # Renamed, because tensor names may contain the separators of compiler flags.
                node.input[place] = f"input_{place}"
                feeds[node.input[place]] = values[each]
        inputs = [_value_info(each, array) for each, array in feeds.items()]
        made = self._model_of([node], inputs, [_value_info(name, values[name])])
        made.graph.initializer.extend(
            onnx.numpy_helper.from_array(values[each], each) for each in self.fixed(name)
        )
        return made, feeds

    def _needed_for(self, names: Iterable[str]) -> set[str]:
        needed: set[str] = set()
        rest = list(names)
        while rest:
            name = rest.pop()
            if name not in needed and name in self._makers:
                needed.add(name)
                rest += _inputs_of(self._makers[name])
        return needed

    def _model_of(
        self,
        nodes: Sequence[NodeProto],
        inputs: Sequence[ValueInfoProto],
        outputs: Sequence[ValueInfoProto],
    ) -> ModelProto:
        import onnx

        used = {name for node in nodes for name in _inputs_of(node)}
        graph = onnx.helper.make_graph(
            nodes,
            "cut",
            inputs,
            outputs,
            [own for name, own in self._initializers.items() if name in used],
        )
        return onnx.helper.make_model(
            graph,
            opset_imports=self._model.opset_import,
            functions=self._model.functions,
            ir_version=self._model.ir_version,
        )


def _inputs_of(node: NodeProto) -> list[str]:
    """Return the inputs of a node and of its subgraphs."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in _graphs(attribute):
            names += _outer_inputs(graph)
    return names


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    one = [attribute.g] if attribute.HasField("g") else []
    return [*one, *attribute.graphs]


def _outer_inputs(graph: GraphProto) -> list[str]:
    """Return the tensors that a subgraph takes from the graph around it."""
    own = {name for node in graph.node for name in node.output}
    own |= {each.name for each in (*graph.input, *graph.initializer)}
    inputs = [name for node in graph.node for name in _inputs_of(node)]
    return [name for name in (*inputs, *(each.name for each in graph.output)) if name not in own]


def _value_info(name: str, array: Array) -> ValueInfoProto:
    import onnx

    elements = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, elements, array.shape)
