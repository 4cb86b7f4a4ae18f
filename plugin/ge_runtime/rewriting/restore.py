"""Restores FP32 in graphs that ONNX Runtime's `quantize_dynamic` has written."""

from __future__ import annotations

from typing import Final

import numpy as np

from ge_runtime.errors import ArtifactFault
from ge_runtime.rewriting.graph import Builder, ModelProto, NodeProto, attribute, constants
from ge_runtime.specs import Array


def restore(model: ModelProto) -> None:
    """Replace the integer products of `quantize_dynamic` with FP32 products, in place.

    The products MatMulInteger and ConvInteger become MatMul and Conv with the dequantized weights.
    Operators whose results are no longer read are removed.

    Raises:
        ArtifactFault: The operators around a product are not those of `quantize_dynamic`.
    """
    _Restoring(model).restore()


class _Restoring:
    """Replaces the products of one graph."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._known = constants(model)
        self._maker = {name: node for node in model.graph.node for name in node.output}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def restore(self) -> None:
        nodes, build = self._model.graph.node, Builder(self._model, "fp32")
        products = [node for node in nodes if node.op_type in _DYNAMIC_PRODUCTS]
        scaled = {node.output[0]: self._scaling_of(node) for node in products}
        ends = {own.output[0] for own, _ in scaled.values()}
        for node in nodes:
            if node.output and node.output[0] in scaled:
                end, weight = scaled[node.output[0]]
                kind = _DYNAMIC_PRODUCTS[node.op_type]
                given = {one.name: attribute(node, one.name) for one in node.attribute}
                source = self._maker[node.input[0]].input[0]
                build.add(kind, [source, build.weight(weight)], end.output[0], **given)
            elif not (node.output and node.output[0] in ends):
                build.nodes.append(node)
        if products:
            build.finish()

    def _scaling_of(self, node: NodeProto) -> tuple[NodeProto, Array]:
        """Return the node that scales a product, and the FP32 weights."""
        source = self._maker.get(node.input[0])
        (cast,) = self._readers.get(node.output[0], [None])[:1]
        (end,) = self._readers.get(cast.output[0], [None])[:1] if cast else (None,)
        if source is not None and end is not None and end.op_type == "Mul":
            factors = {name for name in end.input if name != cast.output[0]}
            factor = self._maker.get(next(iter(factors), ""))
            if source.op_type == "DynamicQuantizeLinear" and factor is not None:
                names = [name for name in factor.input if name != source.output[1]]
                scale = self._known.get(names[0]) if len(names) == 1 else None
                weight = self._known.get(node.input[1])
                if scale is not None and weight is not None:
                    zero = self._known.get(node.input[3]) if len(node.input) > 3 else None
                    return end, _dequantized(node, weight, scale, zero)
        raise ArtifactFault(
            f"{node.op_type} '{node.name or node.output[0]}': found a product that "
            "`quantize_dynamic` does not write, expected DynamicQuantizeLinear, Cast and Mul "
            "beside it; quantize the FP32 graph"
        )


_DYNAMIC_PRODUCTS: Final = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def _dequantized(node: NodeProto, weight: Array, scale: Array, zero: Array | None) -> Array:
    """Return the FP32 weights of a product, from scales and zero points per channel or tensor."""
    shape = (-1,) if node.op_type == "MatMulInteger" else (-1, *(1,) * (weight.ndim - 1))
    values = weight.astype(np.float32)
    if zero is not None:
        values = values - zero.astype(np.float32).reshape(shape if zero.ndim else ())
    restored: Array = values * scale.reshape(shape if scale.size > 1 else ())
    return restored
