"""An ONNX graph cut at its tensors: the part that computes some of them, or one node alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto


class CutGraph:
    """The graph of a file. An `Order` of the tensors that depend on its inputs."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactFault if it cannot be read."""
        try:
            import onnx
        except ImportError as error:
            raise ArtifactFault(
                f"{path}: found no package onnx, expected it, to cut the graph: "
                "`pip install 'ge-runtime[plan]'`"
            ) from error
        try:
            self._model = onnx.load(path)
        except Exception as error:  # protobuf's own, and what onnx makes of them
            raise ArtifactFault(f"{path}: it cannot be read: {error}") from error
        graph = self._model.graph
        self._initializers = {own.name: own for own in graph.initializer}
        self._inputs = {own.name: own for own in graph.input if own.name not in self._initializers}
        self._makers: dict[str, NodeProto] = {
            name: node for node in graph.node for name in node.output if name
        }
        self.outputs: Sequence[str] = [own.name for own in graph.output]
        dependent = set(self._inputs)
        self.tensors: list[str] = []
        """All that nodes make of the inputs, in the order in which they are computed."""
        self._places: dict[str, int] = {}
        for node in graph.node:
            if any(name in dependent for name in _taken(node)):
                for name in filter(None, node.output):
                    dependent.add(name)
                    self._places[name] = len(self.tensors)
                    self.tensors.append(name)

    def before(self, name: str) -> list[str]:
        found: set[str] = set()
        rest = self.taken(name)
        while rest:
            each = rest.pop()
            if each not in found:
                found.add(each)
                rest += self.taken(each)
        return sorted(found, key=self._places.__getitem__)

    def named(self) -> dict[str, NodeProto]:
        """All nodes, by their names; one without is called as ATC calls it."""
        return {
            node.name or f"{node.op_type}_{place}": node
            for place, node in enumerate(self._model.graph.node)
        }

    def has(self, name: str) -> bool:
        """Whether it is a tensor that depends on the inputs."""
        return name in self._places

    def taken(self, name: str) -> list[str]:
        return [each for each in _taken(self._makers[name]) if each in self._places]

    def place(self, name: str) -> int:
        """Of a tensor among all."""
        return self._places[name]

    def node(self, name: str) -> NodeProto:
        """That makes the tensor."""
        return self._makers[name]

    def fixed(self, name: str) -> list[str]:
        """What the tensor's node takes of what nodes make of constants alone."""
        return [
            each
            for each in _taken(self._makers[name])
            if each in self._makers and each not in self._places
        ]

    def computing(self, names: Sequence[str], results: Mapping[str, Array] | None) -> ModelProto:
        """The part of the graph whose outputs are these tensors.

        results: theirs, which tell their types and sizes; None where nobody knows them yet.
        """
        import onnx

        kept = self._needed_for(names)
        nodes = [
            node for node in self._model.graph.node if any(name in kept for name in node.output)
        ]
        used = {name for node in nodes for name in _taken(node)}
        outputs = [
            onnx.helper.make_empty_tensor_value_info(name)
            if results is None
            else _told(name, results[name])
            for name in names
        ]
        return self._model_of(nodes, [own for n, own in self._inputs.items() if n in used], outputs)

    def alone(
        self, name: str, values: Mapping[str, Array]
    ) -> tuple[ModelProto, dict[str, Array]] | None:
        """The node that makes the tensor, and what it takes that depends on the graph's inputs.

        values: of all that it takes and of its results; what nodes make of constants stays so.
        None for a node with graphs in it.
        """
        import onnx

        node = onnx.NodeProto()
        node.CopyFrom(self._makers[name])
        if any(_graphs(attribute) for attribute in node.attribute):
            return None
        feeds: dict[str, Array] = {}
        for place, each in enumerate(node.input):
            if each in self._places or each in self._inputs:
                # Not their own names: a compiler's flags have signs that names may have, too.
                node.input[place] = f"input_{place}"
                feeds[node.input[place]] = values[each]
        inputs = [_told(each, array) for each, array in feeds.items()]
        made = self._model_of([node], inputs, [_told(name, values[name])])
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
                rest += _taken(self._makers[name])
        return needed

    def _model_of(
        self,
        nodes: Sequence[NodeProto],
        inputs: Sequence[ValueInfoProto],
        outputs: Sequence[ValueInfoProto],
    ) -> ModelProto:
        import onnx

        used = {name for node in nodes for name in _taken(node)}
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


def _taken(node: NodeProto) -> list[str]:
    """What a node takes, the graphs in it included."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in _graphs(attribute):
            names += _outer(graph)
    return names


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    one = [attribute.g] if attribute.HasField("g") else []
    return [*one, *attribute.graphs]


def _outer(graph: GraphProto) -> list[str]:
    own = {name for node in graph.node for name in node.output}
    own |= {each.name for each in (*graph.input, *graph.initializer)}
    taken = [name for node in graph.node for name in _taken(node)]
    return [name for name in (*taken, *(each.name for each in graph.output)) if name not in own]


def _told(name: str, array: Array) -> ValueInfoProto:
    import onnx

    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)
