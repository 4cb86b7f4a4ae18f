"""Functions that read and build nodes of ONNX graphs, for all rewrites."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array

# The package onnx and its messages, which have no type stubs.
Onnx: TypeAlias = Any
ModelProto: TypeAlias = Any
NodeProto: TypeAlias = Any
TensorProto: TypeAlias = Any
Value: TypeAlias = Any
"""The value of an attribute: a number, bytes, a list, or a message."""

CONTRIB: Final = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
PACKED: Final = "unpad/"
"""Prefix of the names of packed values: [total, ...], one row for each valid token."""
_STANDARD: Final = ("", "ai.onnx")


@functools.cache
def import_onnx() -> Onnx:
    """Import the package onnx. Raises ArtifactFault if it is not installed."""
    try:
        import onnx
        import onnx.external_data_helper
        import onnx.helper
        import onnx.numpy_helper
    except ImportError as error:
        raise ArtifactFault(
            "package onnx: not installed; expected for rewriting graphs. Run "
            "`pip install 'ge-runtime[plan]'`"
        ) from error
    return onnx


def attribute(node: NodeProto, name: str, default: Value = None) -> Value:
    """Return the value of a node's attribute, or `default`."""
    for each in node.attribute:
        if each.name == name:
            return import_onnx().helper.get_attribute_value(each)
    return default


def operator(node: NodeProto) -> str:
    """Return the node's operator, with its domain if it is not a standard operator."""
    return node.op_type if node.domain in _STANDARD else f"{node.domain}.{node.op_type}"


def opset(model: ModelProto) -> int:
    """Return the version of the standard operators that the model uses."""
    return max(int(one.version) for one in model.opset_import if one.domain in _STANDARD)


def inner_inputs(node: NodeProto) -> Iterator[str]:
    """Yield the names that a node's subgraphs read, including the subgraphs' own values."""
    for each in node.attribute:
        for graph in (each.g, *each.graphs):
            for inner in graph.node:
                yield from inner.input
                yield from inner_inputs(inner)
            yield from (value.name for value in graph.output)


def constant_tensors(model: ModelProto) -> dict[str, TensorProto]:
    """Return weights and the values of Constant nodes by name."""
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if operator(node) == "Constant" and (value := attribute(node, "value")) is not None:
            found[node.output[0]] = value
    # A weight with the name of a graph input is the default of this input, not a constant.
    replaceable = {own.name for own in model.graph.input}
    return {name: tensor for name, tensor in found.items() if name not in replaceable}


def constants(model: ModelProto) -> dict[str, Array]:
    """Return the arrays of `constant_tensors`. External weights must have been loaded."""
    to_array = import_onnx().numpy_helper.to_array
    return {name: to_array(tensor) for name, tensor in constant_tensors(model).items()}


class Builder:
    """Collects new nodes and weights, and gives them names that the graph does not use."""

    def __init__(self, model: ModelProto, prefix: str) -> None:
        """Initialize the builder; names begin with `prefix`."""
        self.nodes: list[NodeProto] = []
        self._model = model
        self._helper = import_onnx().helper
        self._numpy_helper = import_onnx().numpy_helper
        self._taken = {
            *(value.name for value in (*model.graph.input, *model.graph.initializer)),
            *(name for node in model.graph.node for name in node.output),
            *(name for node in model.graph.node for name in inner_inputs(node)),
        }
        self._prefix = prefix
        self._weights: dict[tuple[bytes, str, tuple[int, ...]], str] = {}

    def name(self, stem: str) -> str:
        """Return a new name."""
        name = base = f"{self._prefix}/{stem}"
        count = 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def weight(self, value: Array) -> str:
        """Add a weight to the graph and return its name; equal weights are shared."""
        key = (value.tobytes(), value.dtype.str, value.shape)
        if key not in self._weights:
            name = self._weights[key] = self.name("constant")
            self._model.graph.initializer.append(self._numpy_helper.from_array(value, name))
        return self._weights[key]

    def integers(self, *values: int) -> str:
        """Add a one-dimensional INT64 weight, and return its name."""
        return self.weight(np.array(values, np.int64))

    def add(
        self, op_type: str, inputs: Sequence[str], output: str | None = None, **attributes: Value
    ) -> str:
        """Append a node with one result, and return the result's name."""
        output = output or self.name(op_type)
        self.nodes.append(
            self._helper.make_node(
                op_type, list(inputs), [output], name=f"{output}/node", **attributes
            )
        )
        return output

    def finish(self) -> None:
        """Replace the model's nodes with the collected nodes that contribute to an output.

        Unused weights and all inferred shapes are removed from the model.
        """
        graph = self._model.graph
        used = {value.name for value in graph.output}
        kept: list[NodeProto] = []
        for node in reversed(self.nodes):
            if not used.isdisjoint(node.output):
                kept.append(node)
                used.update(node.input, inner_inputs(node))
        del graph.node[:]
        graph.node.extend(reversed(kept))
        weights = [tensor for tensor in graph.initializer if tensor.name in used]
        if len(weights) < len(graph.initializer):
            del graph.initializer[:]
            graph.initializer.extend(weights)
        del graph.value_info[:]


def save(model: ModelProto, origin: Path, target: Path) -> None:
    """Write a model whose external weights, if any, are beside `origin`.

    External weights are copied to one file beside `target`: <target's name>.data.
    """
    onnx = import_onnx()
    external = onnx.external_data_helper
    if any(external.uses_external_data(tensor) for tensor in model.graph.initializer):
        external.load_external_data_for_model(model, str(origin.parent))
        data = f"{target.name}.data"
        onnx.save(model, str(target), save_as_external_data=True, location=data)
    else:
        onnx.save(model, str(target))


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path in a scratch folder, whose files are moved to the folder of `target` at the end.

    If the block raises, no file is moved.
    """
    with TemporaryDirectory(prefix=f".{target.stem}.", dir=target.parent) as scratch:
        own = Path(scratch) / target.name
        yield own
        for part in own.parent.iterdir():
            part.replace(target.parent / part.name)
