"""The inputs and outputs of a model in its interface: types, formats, names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from onnx import TensorProto

from ascend_simulator.compiler import half
from ascend_simulator.compiler.flags import CompileFault, Options
from ascend_simulator.compiler.inference import Value
from ascend_simulator.compiler.shapes import GraphInput, InputShapes
from ascend_simulator.enumerations import DATA_TYPE_BYTES, DataType, Format
from ascend_simulator.models import om

GraphProto: TypeAlias = Any
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
        graph_name = half.graph_name(name, kind, "in") if options.precision == "fp16" else name
        if kind == TensorProto.FLOAT and name in options.fp16_inputs:
            kind = TensorProto.FLOAT16
        ranges = requested.ranges[index] if requested.family == "dynamic" else ()
        tensors.append(_tensor(options, name, graph_name, kind, requested.dims(index), ranges))
    return tuple(tensors)


def output_tensors(
    options: Options,
    graph: GraphProto,
    dims: Sequence[om.Dims] | None,
    most: Sequence[om.Dims | None],
) -> tuple[om.OmTensor, ...]:
    """Return the outputs.

    `dims` has the dims of each output; None takes the graph's declared dims, with -1 where they
    vary. `most` has the upper bounds of each output's dims for free shapes, None if unknown.
    """
    tensors = []
    for index, value in enumerate(graph.output):
        name, kind = value.name, value.type.tensor_type.elem_type
        graph_name = half.graph_name(name, kind, "out") if options.precision == "fp16" else name
        if kind == TensorProto.FLOAT and options.fp16_outputs:
            kind = TensorProto.FLOAT16
        known = _declared(value) if dims is None else dims[index]
        largest = most[index]
        ranges = () if largest is None else tuple((0, high) for high in largest)
        own = _conversion_name(graph, name)
        tensors.append(_tensor(options, own, graph_name, kind, known, ranges))
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
    # --input_format applies to images and volumes (four and five dims); all others are ND.
    fits = len(dims) == len(options.input_format)
    layout = _FORMATS[options.input_format] if fits else Format.ACL_FORMAT_ND
    nbytes = DATA_TYPE_BYTES[dtype]
    return om.OmTensor(name, graph_name, int(dtype), nbytes, int(layout), dims, ranges)


def _conversion_name(graph: GraphProto, output: str) -> str:
    """Return an output's name as conversions make it, node:port:name."""
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
