"""See `ge`: graphs."""

from pathlib import Path

import onnx
import onnxruntime

from ge.graph.tensor import Tensor
from ge.graph.types import DataType

__all__ = ["Graph", "Node", "Tensor", "air_of"]

_MAGIC = b"fake AIR\n"
_ONNX_TO_GE = {
    onnx.TensorProto.FLOAT: DataType.DT_FLOAT,
    onnx.TensorProto.FLOAT16: DataType.DT_FLOAT16,
    onnx.TensorProto.INT8: DataType.DT_INT8,
    onnx.TensorProto.INT32: DataType.DT_INT32,
    onnx.TensorProto.UINT8: DataType.DT_UINT8,
    onnx.TensorProto.INT16: DataType.DT_INT16,
    onnx.TensorProto.UINT16: DataType.DT_UINT16,
    onnx.TensorProto.UINT32: DataType.DT_UINT32,
    onnx.TensorProto.INT64: DataType.DT_INT64,
    onnx.TensorProto.UINT64: DataType.DT_UINT64,
    onnx.TensorProto.DOUBLE: DataType.DT_DOUBLE,
    onnx.TensorProto.BOOL: DataType.DT_BOOL,
    onnx.TensorProto.BFLOAT16: DataType.DT_BF16,
}


def air_of(onnx_file, target, *, outputs=True):
    """Write an AIR file of the fake's own kind. outputs: with a node NetOutput."""
    target.write_bytes(_MAGIC + bytes([outputs]) + onnx_file.read_bytes())


class _Desc:
    def __init__(self, value):
        kind = value.type.tensor_type
        self.data_type = _ONNX_TO_GE[kind.elem_type]
        self.shape = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]


class Node:
    """An operator, as a graph gives it."""

    def __init__(self, name, kind, descs, index=None, sources=()):
        self._name, self._type = name, kind
        self._descs, self._index, self._sources = descs, index, sources

    @property
    def name(self):
        return self._name

    @property
    def type(self):
        return self._type

    def get_attr(self, key):
        if key != "index" or self._index is None:
            raise RuntimeError(f"Failed to get attribute '{key}' from Node")
        return self._index

    def get_output_desc(self, index):
        if not 0 <= index < len(self._descs):
            raise RuntimeError(f"Failed to get output desc for index {index}")
        return self._descs[index]

    def get_inputs_size(self):
        return len(self._sources)

    def get_in_data_nodes_and_port_indexes(self, index):
        return self._sources[index]


class Graph:
    """A graph of nodes, empty until it is loaded."""

    def __init__(self, name="graph"):
        if not isinstance(name, str):
            raise TypeError("Graph name must be a string")
        self.name = name
        self._nodes = []
        self.computation = None
        """ONNX Runtime's session of it."""

    def __copy__(self):
        raise RuntimeError("Graph does not support copy")

    def load_from_air(self, file_path):
        if not isinstance(file_path, str):
            raise TypeError("file_path must be a string")
        try:
            content = Path(file_path).read_bytes()
        except OSError:
            content = b""
        if not content.startswith(_MAGIC):
            raise RuntimeError("Failed to load graph from AIR format")
        with_outputs, model = content[len(_MAGIC)], content[len(_MAGIC) + 1 :]
        graph = onnx.load_from_string(model).graph
        self._nodes = [
            Node(value.name, "Data", [_Desc(value)], index)
            for index, value in enumerate(graph.input)
        ]
        self._nodes.reverse()  # GE promises no order
        made = Node("body", "PartitionedCall", [_Desc(value) for value in graph.output])
        self._nodes.append(made)
        if with_outputs:
            sources = [(made, port) for port in range(len(graph.output))]
            self._nodes.append(Node("out", "NetOutput", [], sources=sources))
        self.computation = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def get_direct_nodes(self):
        return list(self._nodes)
