"""The inputs and outputs of a model in its interface: types, formats, names, and half precision.

By default ATC rounds all FP32 values of a graph to FP16.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ascend_simulator.codes import DATA_TYPE_BYTES, DataType, Format
from ascend_simulator.compiler.flags import CompileFault, Options
from ascend_simulator.compiler.inference import Value, subgraphs
from ascend_simulator.compiler.shapes import GraphInput, InputShapes
from ascend_simulator.models import om

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
"""Operators whose results need no rounding, because they are input values or their negatives."""

_NO_DATA: Final[Mapping[str, tuple[int, ...]]] = {"Resize": (1, 2, 3), "Upsample": (1,)}
"""Indexes of inputs that are parameters (e.g. scales) and must not be rounded, by operator."""

_SUFFIX: Final = "/half"


def rounded(
    model: ModelProto,
    values: Mapping[str, Value],
    *,
    fp16_inputs: Iterable[str] = (),
    fp16_outputs: bool = False,
) -> ModelProto:
    """Return a copy of `model` that computes in half precision.

    The inputs in `fp16_inputs` become FP16, and with `fp16_outputs` all FP32 outputs. Other inputs
    and outputs keep their types. The names of FP32 inputs and outputs get a suffix: see
    `graph_name`. `values` are the graph's values at any shapes; only their types are used.
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
        """Cast FP32 outputs to FP16 if `fp16`; otherwise only rename them."""
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


ValueInfo: TypeAlias = Any

_DATA_TYPES: Final[Mapping[int, DataType]] = {
    TensorProto.FLOAT: DataType.ACL_FLOAT,
    TensorProto.FLOAT16: DataType.ACL_FLOAT16,
    TensorProto.BFLOAT16: DataType.ACL_BF16,
    TensorProto.DOUBLE: DataType.ACL_DOUBLE,
    TensorProto.INT8: DataType.ACL_INT8,
    TensorProto.INT16: DataType.ACL_INT16,
    TensorProto.INT32: DataType.ACL_INT32,
    TensorProto.INT64: DataType.ACL_INT64,
    TensorProto.UINT8: DataType.ACL_UINT8,
    TensorProto.UINT16: DataType.ACL_UINT16,
    TensorProto.UINT32: DataType.ACL_UINT32,
    TensorProto.UINT64: DataType.ACL_UINT64,
    TensorProto.BOOL: DataType.ACL_BOOL,
}
_FORMATS: Final[Mapping[str, Format]] = {
    "NCHW": Format.ACL_FORMAT_NCHW,
    "NCDHW": Format.ACL_FORMAT_NCDHW,
    "ND": Format.ACL_FORMAT_ND,
}


def input_tensors(
    options: Options, values: Sequence[ValueInfo], requested: InputShapes
) -> tuple[om.OmTensor, ...]:
    """Return the data inputs; `values` are the graph's inputs."""
    tensors = []
    for index, value in enumerate(values):
        name, kind = value.name, value.type.tensor_type.elem_type
        inner = graph_name(name, kind, "in") if options.precision == "fp16" else name
        if kind == TensorProto.FLOAT and name in options.fp16_inputs:
            kind = TensorProto.FLOAT16
        ranges = requested.ranges[index] if requested.family == "dynamic" else ()
        tensors.append(_tensor(options, name, inner, kind, requested.dims(index), ranges))
    return tuple(tensors)


def output_tensors(
    options: Options,
    graph: GraphProto,
    dims: Sequence[om.Dims] | None,
    most: Sequence[om.Dims | None],
) -> tuple[om.OmTensor, ...]:
    """Return the outputs.

    `dims` has the dims of each output; None means the graph's declared dims, where a dim that
    varies is -1. `most` has the upper bounds of each output's dims for free shapes, None if
    unknown.
    """
    tensors = []
    for index, value in enumerate(graph.output):
        name, kind = value.name, value.type.tensor_type.elem_type
        inner = graph_name(name, kind, "out") if options.precision == "fp16" else name
        if kind == TensorProto.FLOAT and options.fp16_outputs:
            kind = TensorProto.FLOAT16
        known = _declared(value) if dims is None else dims[index]
        largest = most[index]
        ranges = () if largest is None else tuple((0, high) for high in largest)
        own = _conversion_name(graph, name)
        tensors.append(_tensor(options, own, inner, kind, known, ranges))
    return tuple(tensors)


def graph_input(value: ValueInfo) -> GraphInput:
    """Return an input as the graph declares it. Raises CompileFault if it has no rank."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise CompileFault("E10055", f"input '{value.name}' has no rank in the model")
    dims = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim)
    return GraphInput(value.name, dims)


def value_bytes(value: Value, *, fp16: bool) -> int:
    """Return the bytes of a value with known dims; with `fp16`, FP32 counts as FP16.

    Raises CompileFault for types that no device supports.
    """
    kind = TensorProto.FLOAT16 if fp16 and value.kind == TensorProto.FLOAT else value.kind
    dtype = _DATA_TYPES.get(kind)
    if dtype is None or value.dims is None:
        raise CompileFault(
            "E10501", f"a value of the graph has the unsupported type {kind_name(kind)}"
        )
    return math.prod(value.dims) * DATA_TYPE_BYTES[dtype]


def _tensor(
    options: Options,
    name: str,
    graph_name: str,
    kind: int,
    dims: om.Dims,
    ranges: tuple[tuple[int, int], ...],
) -> om.OmTensor:
    dtype = _DATA_TYPES.get(kind)
    if dtype is None:
        raise CompileFault("E10501", f"'{name}' has the unsupported type {kind_name(kind)}")
    # --input_format applies to images and volumes (four and five dims); other tensors are ND.
    fits = len(dims) == len(options.input_format)
    layout = _FORMATS[options.input_format] if fits else Format.ACL_FORMAT_ND
    nbytes = DATA_TYPE_BYTES[dtype]
    return om.OmTensor(name, graph_name, int(dtype), nbytes, int(layout), dims, ranges)


def _conversion_name(graph: GraphProto, output: str) -> str:
    """Return the name of an output in a compiled file, node:port:name."""
    for node in graph.node:
        if output in node.output:
            port = list(node.output).index(output)
            return f"{node.name or node.op_type}:{port}:{output}"
    return f"{output}:0:{output}"  # an output that is an input or a constant


def _declared(value: ValueInfo) -> om.Dims:
    return tuple(dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim)


def kind_name(kind: int) -> str:
    """Return ONNX's name of an element type."""
    return str(TensorProto.DataType.Name(kind)) if kind else "no tensor"
