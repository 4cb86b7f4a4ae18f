"""Linear layers in INT8 whose activations have one scale for each row (token).

`quantize_dynamic` of ONNX Runtime computes one scale for a whole execution, so the answer to a
request depends on the other requests. Here each row has its own scale, and integer products are
exact: a row's result depends on that row only.

    scale = max(highest / (255 - zero), lowest / -zero), for each row
    q     = round(row / scale) + zero, UINT8
    y     = scale * (channel_scale * ((q - zero) @ weight)), weight INT8 with channel scales

Operators of ONNX Runtime are used for the product. `MatMulIntegerToFloat` saves two passes over its
result. ONNX Runtime fuses MatMulInteger, Cast and Mul only if one scale applies to all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ge_runtime.errors import ArtifactFault
from ge_runtime.rewriting.gelu import approximate_gelu
from ge_runtime.rewriting.graph import (
    CONTRIB,
    PACKED,
    Builder,
    ModelProto,
    NodeProto,
    attribute,
    constants,
    import_onnx,
    operator,
    opset,
)
from ge_runtime.rewriting.restore import restore
from ge_runtime.specs import Array

METADATA: Final = "ge_runtime.int8"
"""The key of the metadata that marks a graph as rewritten; its value is "rows"."""
_OLDEST: Final = 11
"""The oldest supported opset."""
_SMALLEST: Final = 4096
"""Least number of weights: in smaller layers INT8 costs more than it saves."""
_SMALLEST_TABLE: Final = 2**18
"""Least number of weights of an embedding: INT8 adds three nodes, which cost more in small ones."""
_TINY: Final = 1e-12
"""The least scale, for rows of zeros."""
MIDDLE: Final = 128
"""The zero point for activations of both signs."""


class Form(NamedTuple):
    """The INT8 form of the activations that one or more layers read."""

    zero: int = MIDDLE
    """The zero point. A low value suits activations that are mostly positive, as after GELU."""
    divisors: Array | None = None
    """FP32 [K]: divide the activations and multiply the weights; None for no scaling."""
    blocks: int = 1
    """Number of blocks of a row, each with its own scale: a large value affects only its block."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with constant weights that can be computed in INT8."""

    node: NodeProto
    source: str
    """The name of the layer's input."""
    result: str
    """The name of the layer's output."""
    weight: Array
    """FP32 [K, N]; [rows, width] for an embedding."""
    bias: str = ""

    @property
    def name(self) -> str:
        """The name of the weights, for reports."""
        return str(self.node.input[0 if self.is_table else 1])

    @property
    def is_table(self) -> bool:
        """True for an embedding."""
        return bool(self.node.op_type == "Gather")

    @property
    def is_convolution(self) -> bool:
        """True for a convolution of width 1, over [rows, channels, length]."""
        return bool(self.node.op_type == "Conv")

    def rows(self, values: Array) -> Array:
        """Return values of the source as rows [n, K]."""
        if self.is_convolution:
            values = values.swapaxes(1, 2)
        return values.reshape(-1, self.weight.shape[0])


def quantized_weight(weight: Array, axis: int = 0) -> tuple[Array, Array]:
    """Return INT8 weights and FP32 scales, one along `axis`; the product is about `weight`."""
    scale = np.abs(weight).max(axis, keepdims=True) / np.float32(127)
    scale = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale


def quantized_rows(rows: Array, zero: int = MIDDLE) -> tuple[Array, Array]:
    """Return UINT8 [n, K] and FP32 scales [n, 1] of rows, as the graph computes them."""
    high = rows.max(1, keepdims=True) * np.float32(1 / (255 - zero))
    low = rows.min(1, keepdims=True) * np.float32(-1 / zero)
    scale = np.maximum(np.maximum(high, low), np.float32(_TINY))
    return np.clip(np.rint(rows / scale) + zero, 0, 255).astype(np.uint8), scale


def computed(layer: Layer, rows: Array, form: Form) -> Array:
    """Return the layer's INT8 result for rows [n, K], as FP32 [n, N] without the bias."""
    weight = layer.weight
    if form.divisors is not None:
        rows, weight = rows * (1 / form.divisors), weight * form.divisors[:, None]
    total = np.zeros((), np.float32)
    for part, own in zip(
        np.split(rows, form.blocks, axis=1), np.split(weight, form.blocks), strict=True
    ):
        q, scale = quantized_rows(part, form.zero)
        w, channels = quantized_weight(own)
        # Exact in FP64, and much faster than a product of integers in NumPy.
        product = (q.astype(np.float64) - form.zero) @ w.astype(np.float64)
        total = total + (product.astype(np.float32) * channels) * scale
    return total


def read_model(path: Path) -> ModelProto:
    """Read the graph in `path` with its weights; dynamically quantized layers become FP32.

    Raises:
        ArtifactFault: The file is not an ONNX graph, is already in INT8 with a scale per row, or
            has an unsupported opset.
    """
    onnx = import_onnx()
    if not path.is_file():
        raise ArtifactFault(f"{path}: found no file, expected an ONNX graph")
    try:
        model = onnx.load(str(path))
    except OSError:
        raise
    except Exception as error:  # protobuf has an exception of its own for each implementation
        raise ArtifactFault(f"{path}: found no ONNX graph ({error}), expected one") from error
    if any(entry.key == METADATA for entry in model.metadata_props):
        raise ArtifactFault(f"{path}: found INT8 with a scale per row already, expected FP32")
    versions = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
    if not versions or opset(model) < _OLDEST:
        raise ArtifactFault(
            f"{path}: found opset {max(versions, default=0)}, expected {_OLDEST} or later; export "
            "the graph again"
        )
    restore(model)
    return model


def find_layers(model: ModelProto) -> list[Layer]:
    """Return the layers that can be computed in INT8: linear layers, and large embeddings."""
    known = constants(model)
    found = (_layer(node, known) for node in model.graph.node)
    return [layer for layer in found if layer is not None]


def _layer(node: NodeProto, known: Mapping[str, Array]) -> Layer | None:
    kind = operator(node)
    if kind not in ("MatMul", "Gemm", "Conv", "Gather") or len(node.input) < 2:
        return None
    place = 0 if kind == "Gather" else 1
    weight = known.get(node.input[place])
    if weight is None or weight.dtype != np.float32:
        return None
    source, result = node.input[1 - place], node.output[0]
    bias = node.input[2] if len(node.input) > 2 else ""
    if kind == "Gather":
        is_table = weight.ndim == 2 and weight.size >= _SMALLEST_TABLE
        is_table = is_table and attribute(node, "axis", 0) == 0
        return Layer(node, source, result, weight) if is_table else None
    if kind == "Gemm":
        plain = attribute(node, "alpha", 1.0) == 1.0 and attribute(node, "beta", 1.0) == 1.0
        if not plain or attribute(node, "transA", 0):
            return None
        weight = weight.T if attribute(node, "transB", 0) else weight
    elif kind == "Conv":
        moves = (*attribute(node, "strides", (1,)), *attribute(node, "pads", (0, 0)))
        if weight.shape[2:] != (1,) or moves != (1, 0, 0) or attribute(node, "group", 1) != 1:
            return None
        weight = weight[:, :, 0].T
    if weight.ndim != 2 or weight.size < _SMALLEST or source in known:
        return None
    return Layer(node, source, result, np.ascontiguousarray(weight), bias)


def quantize(model: ModelProto, layers: list[Layer], forms: Mapping[str, Form]) -> None:
    """Compute all these layers in INT8, in place.

    `forms` has the forms of sources of linear layers, by source; other sources have `Form()`.
    """
    _Quantizing(model, layers, forms).quantize()


class _Quantizing:
    """Replaces the nodes of layers."""

    def __init__(self, model: ModelProto, layers: list[Layer], forms: Mapping[str, Form]) -> None:
        self._model = model
        self._layers = {layer.result: layer for layer in layers}
        self._forms = forms
        self._build = Builder(model, "int8")
        self._opset = opset(model)
        self._quantized: dict[tuple[str, bool], list[tuple[str, str]]] = {}
        self._shaped = _inferred(model)
        self._made: dict[tuple[Any, ...], str] = {}
        self._typed: list[tuple[str, str, int]] = []  # (result, value of equal shape, data type)

    def quantize(self) -> None:
        onnx, model, shaped = import_onnx(), self._model, self._shaped
        for node in model.graph.node:
            layer = self._layers.get(node.output[0]) if node.output else None
            if layer is None:
                self._build.nodes.append(node)
            elif layer.is_table:
                self._table(layer)
            else:
                self._linear(layer)
        self._build.finish()
        approximate_gelu(model)
        if all(one.domain != CONTRIB for one in model.opset_import):
            model.opset_import.append(onnx.helper.make_opsetid(CONTRIB, 1))
        onnx.helper.set_model_props(
            model, {**{one.key: one.value for one in model.metadata_props}, METADATA: "rows"}
        )
        # ONNX Runtime plans memory by shapes. onnx infers no shapes for ONNX Runtime's operators.
        for name, like, data_type in self._typed:
            if like in shaped:
                value = model.graph.value_info.add()
                value.CopyFrom(shaped[like])
                value.name = name
                value.type.tensor_type.elem_type = data_type

    def _linear(self, layer: Layer) -> None:
        build, form = self._build, self._forms.get(layer.source, Form())
        weight = layer.weight
        if form.divisors is not None:
            weight = weight * form.divisors[:, None]
        result = ""
        parts = np.split(weight, form.blocks)
        last = not layer.bias and not layer.is_convolution
        for part, (q, scale) in zip(parts, self._rows_of(layer, form), strict=True):
            w, channels = quantized_weight(part)
            product = build.add(
                "MatMulIntegerToFloat",
                [
                    q,
                    build.weight(w),
                    build.weight(np.array(1, np.float32)),
                    build.weight(channels[0]),
                    build.weight(np.array(form.zero, np.uint8)),
                ],
                domain=CONTRIB,
            )
            if not layer.is_convolution:
                self._typed.append((product, layer.result, import_onnx().TensorProto.FLOAT))
            ends = last and form.blocks == 1
            scaled = build.add("Mul", [product, scale], layer.result if ends else None)
            ends = last and part is parts[-1]
            if result:
                scaled = build.add("Add", [result, scaled], layer.result if ends else None)
            result = scaled
        if layer.bias:
            target = None if layer.is_convolution else layer.result
            result = build.add("Add", [result, layer.bias], target)
        if layer.is_convolution:
            build.add("Transpose", [result], layer.result, perm=[0, 2, 1])

    def _rows_of(self, layer: Layer, form: Form) -> list[tuple[str, str]]:
        """Return the names of a source's UINT8 rows and of their scales, for each block."""
        key = (layer.source, layer.is_convolution)
        if key in self._quantized:
            return self._quantized[key]
        build, rows = self._build, layer.source
        if layer.is_convolution:
            rows = build.add("Transpose", [rows], perm=[0, 2, 1])
        if form.divisors is not None:
            rows = build.add("Mul", [rows, build.weight(1 / form.divisors)])
        width = layer.weight.shape[0] // form.blocks
        lead = self._lead(layer)
        # A source [rows, K] needs no Reshape: fewer nodes make small executions faster.
        is_flat = form.blocks == 1 and self._rank(layer) == 2
        flat = rows if is_flat else build.add("Reshape", [rows, build.integers(-1, width)])
        whole = rows if form.blocks == 1 else flat
        factors = np.float32(1 / (255 - form.zero)), np.float32(-1 / form.zero)
        bounds = [
            build.add("Mul", [self._reduce_last(reduce, whole), build.weight(np.array(factor))])
            for reduce, factor in zip(("ReduceMax", "ReduceMin"), factors, strict=True)
        ]
        scale = build.add("Max", [*bounds, build.weight(np.array(_TINY, np.float32))])
        scales = build.add("Reshape", [scale, build.integers(-1)])
        zero = import_onnx().numpy_helper.from_array(np.array([form.zero], np.uint8))
        zeros = self._shared(
            (lead, form.blocks, form.zero),
            lambda: build.add("ConstantOfShape", [build.add("Shape", [scales])], value=zero),
        )
        # Before opset 13, the standard operator has no scales along an axis.
        domain = "" if self._opset >= 13 else CONTRIB
        q = build.add("QuantizeLinear", [flat, scales, zeros], axis=0, domain=domain)
        if not is_flat:
            shape = self._shared((lead, layer.weight.shape[0]), lambda: build.add("Shape", [rows]))
            q = build.add("Reshape", [q, shape])
        if not layer.is_convolution:
            self._typed.append((q, layer.source, import_onnx().TensorProto.UINT8))
        if form.blocks == 1:
            self._quantized[key] = [(q, scale)]
        else:
            integers = build.integers
            dims = build.add("Slice", [shape, integers(0), integers(-1)])
            dims = build.add("Concat", [dims, integers(form.blocks)], axis=0)
            scale = build.add("Reshape", [scales, dims])
            parts = self._split(q, form.blocks), self._split(scale, form.blocks)
            self._quantized[key] = [*zip(*parts, strict=True)]
        return self._quantized[key]

    def _lead(self, layer: Layer) -> tuple[str | int, ...]:
        """Return the dims of a source except the last; empty if one has neither name nor size."""
        if layer.source.startswith(PACKED):
            return (PACKED,)  # all packed values have a row for each valid token
        value = self._shaped.get(layer.source)
        if value is None or layer.is_convolution:
            return ()
        dims = [own.dim_param or own.dim_value for own in value.type.tensor_type.shape.dim[:-1]]
        return tuple(dims) if all(dims) else ()

    def _rank(self, layer: Layer) -> int:
        """Return the rank of a source; 0 if it is not known."""
        value = self._shaped.get(layer.source)
        return 0 if value is None else len(value.type.tensor_type.shape.dim)

    def _shared(self, key: tuple[Any, ...], make: Callable[[], str]) -> str:
        """Return a result that layers of equal dims share, which makes small executions faster."""
        if not key[0]:
            return make()
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _split(self, value: str, parts: int) -> list[str]:
        """Split the last dim into equal parts."""
        names = [self._build.name("Split") for _ in range(parts)]
        count = {"num_outputs": parts} if self._opset >= 18 else {}
        make_node = import_onnx().helper.make_node
        self._build.nodes.append(make_node("Split", [value], names, axis=-1, **count))
        return names

    def _reduce_last(self, op_type: str, value: str) -> str:
        """Reduce the last dim to size 1."""
        if self._opset >= 18:
            return self._build.add(op_type, [value, self._build.integers(-1)], keepdims=1)
        return self._build.add(op_type, [value], axes=[-1], keepdims=1)

    def _table(self, layer: Layer) -> None:
        build = self._build
        w, scales = quantized_weight(layer.weight, axis=1)
        q = build.add("Gather", [build.weight(w), layer.source])
        value = build.add("Cast", [q], to=import_onnx().TensorProto.FLOAT)
        scale = build.add("Gather", [build.weight(scales), layer.source])
        build.add("Mul", [value, scale], layer.result)


def _inferred(model: ModelProto) -> dict[str, Any]:
    """Return the value infos of all tensors whose shape is known."""
    from onnx import shape_inference

    try:
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
    except (shape_inference.InferenceError, ValueError):  # ValueError: above 2 GiB
        return {}
    return {own.name: own for own in (*graph.input, *graph.value_info, *graph.output)}
