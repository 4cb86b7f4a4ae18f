"""Writes ONNX graphs node by node: names for what flows, one place for constants.

Standard operators only, so that every engine can compile the result: ONNX Runtime, and Ascend's
ATC, which reads opsets 11 to 18. Opset 12 is the newest at which ONNX Runtime still recognises a
whole BERT attention block (its pattern knows MatMul up to the version of that opset).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    checker,
    helper,
    numpy_helper,
)

OPSET = 12
IR_VERSION = 7  # the file format that came with opset 12

FLOAT32 = int(TensorProto.FLOAT)
"""The element type that a Cast node to float32 names."""

Dimension = int | str
"""A fixed size, or the name of one that each run may choose."""


class GraphWriter:
    """An ONNX graph under construction. Values are named by strings, as in the file itself."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._shapes: list[ValueInfoProto] = []

    def input(self, name: str, dtype: type[np.generic], shape: list[Dimension]) -> str:
        """Declare an input of the model; returns its name."""
        self._inputs.append(_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: type[np.generic], shape: list[Dimension]) -> str:
        """Declare an output of the model; a node must produce a value of this name."""
        self._outputs.append(_value_info(name, dtype, shape))
        return name

    def shape(self, name: str, dtype: type[np.generic], shape: list[Dimension]) -> str:
        """State the shape of an inner value that shape inference cannot find; returns its name."""
        self._shapes.append(_value_info(name, dtype, shape))
        return name

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        """Store a constant under `name`, or find it stored already; returns its name.

        Raises ValueError if the name stands for another value.
        """
        stored = self._constants.get(name)
        if stored is None:
            # np.ascontiguousarray would make a vector of a scalar.
            self._constants[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        elif not np.array_equal(numpy_helper.to_array(stored), value):
            raise ValueError(
                f"constant '{name}': found {value!r}, stored with another value before"
            )
        return name

    def node(
        self, operator: str, *inputs: str, name: str = "", **attributes: float | Sequence[int]
    ) -> str:
        """Append a node with one output and return that output's name.

        name: of node and output; by default the operator with the node's position.
        """
        name = name or f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def model(self, name: str, description: str) -> ModelProto:
        """The finished model. Raises onnx.checker.ValidationError if the graph is not sound."""
        graph = helper.make_graph(
            self._nodes,
            name,
            self._inputs,
            self._outputs,
            initializer=list(self._constants.values()),
            doc_string=description,
            value_info=self._shapes,
        )
        model = helper.make_model(
            graph,
            producer_name="model_factory",
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        checker.check_model(model, full_check=True)
        return model


def _value_info(name: str, dtype: type[np.generic], shape: list[Dimension]) -> ValueInfoProto:
    element: int = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element, shape)
