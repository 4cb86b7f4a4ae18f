"""Half precision: rounds all FP32 values of a graph to FP16, as ATC does by default.

ONNX Runtime computes FP16 operators in FP32 on a CPU and drops the roundings between them, so a
graph of FP16 operators would be more precise than a device. Here operators stay FP32, and each FP32
value (weights, inputs and every operator's result) is cast to FP16 and back. A sum may therefore be
exact inside an operator, as in the cube unit, and its result is rounded to half precision: 2048 + 1
is 2048, 65,520 is infinite.

Not simulated: a compiler fuses operators and rounds less often, vector operators compute in FP16
internally, and some operators are kept in FP32 on purpose. FP64 and integers are unchanged, and
inside If, Loop and Scan only constants are rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ascend_simulator.compiler.inference import Value, subgraphs

ModelProto: TypeAlias = Any
GraphProto: TypeAlias = Any
NodeProto: TypeAlias = Any

_EXACT: Final = frozenset(
    (
        *("Abs", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Identity", "Max", "MaxPool", "Min", "Neg", "ReduceMax", "ReduceMin", "Relu"),
        *("Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose"),
        *("Unsqueeze", "Where"),
    )
)
"""Operators whose results are input values or their negatives: already rounded."""

_NO_DATA: Final[Mapping[str, tuple[int, ...]]] = {"Resize": (1, 2, 3), "Upsample": (1,)}
"""Operator -> its inputs that are parameters, such as scales, and must not be rounded."""

_SUFFIX: Final = "/half"


def rounded(
    model: ModelProto,
    values: Mapping[str, Value],
    *,
    fp16_inputs: Iterable[str] = (),
    fp16_outputs: bool = False,
) -> ModelProto:
    """Return a copy of `model` that computes in half precision.

    Inputs and outputs keep their types, except those named in `fp16_inputs` and, with
    `fp16_outputs`, all FP32 outputs. All names are unchanged, except FP32 inputs and outputs, which
    get a suffix: see `graph_name`. `values` are the graph's at any shapes; only their types are
    used.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _round(result.graph, values)
    boundary = _Boundary(result.graph)
    boundary.inputs(frozenset(fp16_inputs))
    boundary.outputs(fp16_outputs)
    return result


def graph_name(name: str, kind: int, side: Literal["in", "out"]) -> str:
    """Return the name in a rounded graph of an input or output `name` of this type."""
    return f"{name}/{side}" if kind == TensorProto.FLOAT else name


def _round(graph: GraphProto, values: Mapping[str, Value]) -> None:
    """Round the results and constants of the nodes of `graph` and its subgraphs."""
    nodes: list[NodeProto] = []
    exempt = {
        name
        for node in graph.node
        for place, name in enumerate(node.input)
        if place in _NO_DATA.get(node.op_type, ())
    }
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in exempt:
            half = numpy_helper.from_array(
                _to_half(numpy_helper.to_array(tensor)), tensor.name + _SUFFIX
            )
            nodes.append(_cast(half.name, tensor.name, TensorProto.FLOAT))
            tensor.CopyFrom(half)
    for node in graph.node:
        for inner in subgraphs(node):
            _round(inner, {})
        nodes.append(node)
        if node.op_type in _EXACT:
            continue
        for place, name in enumerate(node.output):
            value = values.get(name)
            if value is not None and value.kind == TensorProto.FLOAT and name not in exempt:
                raw, half = name + "/raw", name + _SUFFIX
                node.output[place] = raw
                nodes.append(_cast(raw, half, TensorProto.FLOAT16))
                nodes.append(_cast(half, name, TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    initialized = {tensor.name.removesuffix(_SUFFIX) for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initialized]
    del graph.input[:]
    graph.input.extend(inputs)
    del graph.value_info[:]


class _Boundary:
    """Casts between the caller's types and the graph's types."""

    def __init__(self, graph: GraphProto) -> None:
        self._graph = graph

    def inputs(self, fp16: frozenset[str]) -> None:
        """Round FP32 inputs."""
        nodes = []
        for value in self._graph.input:
            name, tensor = value.name, value.type.tensor_type
            if tensor.elem_type != TensorProto.FLOAT:
                continue
            value.name = graph_name(name, TensorProto.FLOAT, "in")
            nodes.append(_cast(name + _SUFFIX, name, TensorProto.FLOAT))
            if name in fp16:
                tensor.elem_type = TensorProto.FLOAT16
                nodes[-1].input[0] = value.name
            else:
                nodes.insert(-1, _cast(value.name, name + _SUFFIX, TensorProto.FLOAT16))
        kept = list(self._graph.node)
        del self._graph.node[:]
        self._graph.node.extend([*nodes, *kept])

    def outputs(self, fp16: bool) -> None:
        """Return FP32 outputs unchanged, or as FP16."""
        for value in self._graph.output:
            name, tensor = value.name, value.type.tensor_type
            if tensor.elem_type != TensorProto.FLOAT:
                continue
            value.name = graph_name(name, TensorProto.FLOAT, "out")
            if fp16:
                tensor.elem_type = TensorProto.FLOAT16
            self._graph.node.append(_cast(name, value.name, tensor.elem_type))


def _to_half(array: NDArray[Any]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):  # above 65,504 the result is infinite, as on a device
        return array.astype(np.float16)


def _cast(source: str, target: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=target + "/cast", to=kind)
