"""Removes padding from encoders: token-wise operators are computed for valid tokens only.

The rewritten graph has the inputs and outputs of the original graph. A value [rows, tokens, ...] of
a token-wise operator is packed to [total, ...], where total is the number of valid tokens. Every
other operator, such as the core of attention, keeps its padded operands.

- A token-wise node is packed if it reads a packed value. Linear layers and embeddings of all
  tokens, and nodes that join the heads of attention, are also packed if they read padded values.
  Shapes at two sets of sizes show which values have tokens.
- A node that reads both a packed value and a value that depends on the mask stays padded: it may
  write the padding on purpose, e.g. zeros before a sum over the tokens.
- Padded places of an unpacked value repeat the last valid token of their row. They are therefore
  finite, and rows stay independent. The first place of a row counts as valid, so that no row is
  empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.engines.analysis.onnx_file import OnnxFile
from ge_runtime.engines.analysis.onnx_graph import UNPADDED, OnnxGraph
from ge_runtime.errors import ArtifactFault
from ge_runtime.rewriting.graph import (
    PACKED,
    Builder,
    ModelProto,
    NodeProto,
    Value,
    attribute,
    import_onnx,
    inner_inputs,
    operator,
    opset,
)
from ge_runtime.rewriting.tokens import LINEAR, SIZES, Layout, Refused, Shape, TokenAnalysis

LEAST_OPSET: Final = 11
"""The first opset with CumSum, and with negative axes in all operators."""

# fmt: off
_ELEMENTWISE: Final = frozenset([
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "DequantizeLinear", "Div", "Dropout",
    "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid",
    "HardSwish", "Identity", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min",
    "Mish", "Mul", "Neg", "Not", "Or", "Pow", "QuantizeLinear", "Reciprocal", "Relu", "Round",
    "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish",
    "Tanh", "ThresholdedRelu", "Where", "Xor",
    "com.microsoft.BiasGelu", "com.microsoft.FastGelu", "com.microsoft.Gelu",
    "com.microsoft.QuickGelu",
])
# fmt: on
_REDUCTIONS: Final = frozenset(
    f"Reduce{name}" for name in ("L1", "L2", "Max", "Mean", "Min", "Sum", "SumSquare")
)
_NORMALISATIONS: Final = frozenset({"LayerNormalization", "RMSNormalization"})
_SOFTMAX: Final = frozenset({"Softmax", "LogSoftmax"})
_VIEWS: Final = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_SUMS: Final = frozenset({"Attention", "Einsum", "MatMul", "com.microsoft.MultiHeadAttention"})


@dataclass(frozen=True, slots=True)
class Unpadded:
    """A rewritten graph."""

    model: ModelProto
    mask: str
    """The name of the value, usually an input, whose elements are not 0 for valid tokens."""
    packed: tuple[str, ...]
    """The operators of the nodes that are computed for valid tokens only."""
    nodes: int
    """Nodes of the original graph."""
    tokens: frozenset[str]
    """The outputs that are [rows, tokens, ...]; their padded places have no meaning."""
    limits: Mapping[str, int]
    """For each input of token ids, the number of rows of the smallest table that it indexes."""
    samples: int
    """Input elements for each token; 1 unless the inputs are audio samples."""

    def __str__(self) -> str:
        linear = sum(one in LINEAR for one in self.packed)
        return (
            f"{len(self.packed)} of {self.nodes} nodes, {linear} of them linear layers, are "
            f"computed for valid tokens only, by '{self.mask}'"
        )


def unpad(path: Path) -> Unpadded:
    """Rewrite the encoder in `path`.

    Weights in external files stay there.

    Raises:
        ArtifactFault: The package onnx is not installed, or the graph is not an encoder that can be
            rewritten; the text has the reason.
    """
    onnx = import_onnx()
    graph = OnnxGraph.read(OnnxFile.read(path))
    assert graph is not None, "import_onnx has not raised"
    model = onnx.load(str(path), load_external_data=False)
    try:
        return _Rewrite(model, graph).run()
    except Refused as reason:
        raise ArtifactFault(f"{path}: cannot be unpadded: {reason}") from None


class _Rewrite(TokenAnalysis):
    """Rewrites one model, in place."""

    def __init__(self, model: ModelProto, graph: OnnxGraph) -> None:
        super().__init__(model, graph)
        self._opset = opset(model)
        if any(entry.key == UNPADDED for entry in model.metadata_props):
            raise Refused("found a graph that was unpadded before, expected the original")
        if self._opset < LEAST_OPSET:
            raise Refused(f"found opset {self._opset}, expected {LEAST_OPSET} or later")
        self._build = Builder(model, PACKED.rstrip("/"))
        self._packed: dict[str, str] = {}  # value -> its packed form
        self._given: dict[str, str] = {}  # padded value -> the packed form made from it
        self._unpacked: set[str] = set()  # packed values whose padded form exists, too
        self._from_mask: set[str] = set()  # padded values that depend on the mask
        self._operators: list[str] = []
        # The names of emitted indices: by operator, or by number of heads.
        self._of_token: dict[str, str] = {}
        self._of_heads: dict[int, str] = {}
        self._of_joined: dict[int, str] = {}

    def run(self) -> Unpadded:
        """Rewrite the model. Raises Refused."""
        graph = self._model.graph
        nodes = [*graph.node]
        limits = self._limits()
        self._mask = self._find_mask()
        self._sizes = [shapes[self._mask] for shapes in self._shapes]
        before = self._ancestors(self._mask)
        roots = {name for name in before if name not in self._producer}
        self._from_mask.update(roots, [self._mask])
        # The indices of valid tokens are emitted before the nodes that use them.
        ahead = before | self._constants
        for node in nodes:
            if not ahead.isdisjoint(node.output):
                self._keep(node)
        self._add_places()
        for node in nodes:
            if ahead.isdisjoint(node.output):
                self._convert(node)
        outputs = [value.name for value in graph.output]
        self._unpack(outputs)
        if not any(one in LINEAR for one in self._operators):
            raise Refused(
                "found no linear layer of constant weights whose input is [rows, tokens, features] "
                f"with the rows and tokens of '{self._mask}'; expected the layers of an encoder"
            )
        self._build.finish()
        self._model.metadata_props.add(key=UNPADDED, value=self._mask)
        return Unpadded(
            self._model,
            self._mask,
            tuple(self._operators),
            len(nodes),
            frozenset(name for name in outputs if self._layout(name) is not None),
            limits,
            self._given_tokens[0] // self._sizes[0][1],
        )

    # -- building

    def _add_places(self) -> None:
        """Add the indices with which values are packed and unpacked."""
        build, add = self._build, self._build.add
        proto = import_onnx().TensorProto
        shape = add("Shape", [self._mask])
        valid = add("Cast", [self._mask], to=proto.BOOL)
        counted = add("Cast", [valid], to=proto.INT64)
        # The first place counts as valid, so that padding never repeats a token of another row.
        most = np.iinfo(np.int64).max
        axis = build.integers(1)
        rest = add("Slice", [counted, build.integers(1), build.integers(most), axis])
        first = build.weight(np.array(1, np.int64))
        counted = add("Pad", [rest, build.integers(0, 1, 0, 0), first])
        flat = add("Reshape", [counted, build.integers(-1)])
        ends = add("CumSum", [flat, build.weight(np.array(0, np.int64))])
        self._flat_slots = add("Sub", [ends, first])
        self._slots = add("Reshape", [self._flat_slots, shape])
        self._places = add("Reshape", [add("NonZero", [flat]), build.integers(-1)])
        self._shape = shape
        self._count = add("Slice", [shape, build.integers(1), build.integers(2)])  # tokens

    def _convert(self, node: NodeProto) -> None:
        """Emit a node, packed if possible."""
        kind = operator(node)
        reads = any(name in self._packed for name in node.input)
        if kind == "Shape" and reads:
            self._shape_of(node)
            return
        rule = _RULES.get(kind)
        if rule is not None and (reads or self._is_layer(node)) and rule(self, node):
            self._operators.append(kind)
            return
        self._keep(node)

    def _keep(self, node: NodeProto) -> None:
        """Emit a node unchanged, after the padded forms of its operands."""
        names = [*node.input, *inner_inputs(node)]
        self._unpack(names)
        self._build.nodes.append(node)
        kind = operator(node)
        # A sum over tokens, such as that of attention, writes nothing into the padding.
        if kind not in SIZES | _SUMS and not self._from_mask.isdisjoint(names):
            self._from_mask.update(node.output)

    def _is_layer(self, node: NodeProto) -> bool:
        """Return whether a node is a linear layer or an embedding of all tokens, or joins heads."""
        kind = operator(node)
        if kind in _VIEWS:
            return True
        if kind in LINEAR:
            return self._layout(node.input[0]) is not None
        return kind == "Gather" and self._layout(node.input[1]) is not None

    def _unpack(self, names: Iterable[str]) -> None:
        """Emit the padded form of each value that is packed."""
        for name in names:
            if name in self._packed and name not in self._unpacked:
                self._unpacked.add(name)
                layout = self._layout(name)
                assert layout is not None, "packed values have one"
                slots = self._flat_slots if layout.flat else self._slots
                self._build.add("Gather", [self._packed[name], slots], name, axis=0)

    def _pack(self, name: str) -> str:
        """Return the packed form of a value with tokens."""
        packed = self._packed.get(name) or self._given.get(name)
        if packed is None:
            layout = self._layout(name)
            assert layout is not None, "callers check it"
            packed = self._joined_heads(name, layout)
            if packed is None:
                rows = name if layout.flat else self._rows_of(name, layout.rest)
                packed = self._build.add("Gather", [rows, self._places], axis=0)
            self._given[name] = packed
        return packed

    def _joined_heads(self, name: str, layout: Layout) -> str | None:
        """Return the packed form of a transposed [rows, heads, tokens, width], in one copy.

        None if the value `name` has another form.
        """
        node = self._producer.get(name)
        while node is not None and operator(node) in _VIEWS:
            node = self._producer.get(node.input[0])
        if node is None or operator(node) != "Transpose":
            return None
        inner = self._layout(node.output[0])
        if list(attribute(node, "perm", ())) != [0, 2, 1, 3] or inner is None or inner.flat:
            return None
        if math.prod(inner.rest) != math.prod(layout.rest) or node.input[0] in self._packed:
            return None
        heads, width = inner.rest
        build = self._build
        places = self._of_joined.get(heads)
        if places is None:
            # Indices into [rows * heads * tokens, width], as [total, heads]. For place p with
            # token t, the index is (p - t) * heads + t + head * tokens.
            token = self._index("Mod")
            first = build.add("Sub", [self._places, token])
            first = build.add("Mul", [first, build.integers(heads)])
            first = build.add("Add", [first, token])
            first = build.add("Reshape", [first, build.integers(-1, 1)])
            each = build.weight(np.arange(heads, dtype=np.int64).reshape(1, heads))
            each = build.add("Mul", [each, self._count])
            places = self._of_joined[heads] = build.add("Add", [first, each])
        joined = build.add("Gather", [self._rows_of(node.input[0], (width,)), places], axis=0)
        return self._rows_of(joined, layout.rest)

    def _index(self, kind: str) -> str:
        """Return the row ("Div") or the token ("Mod") of each packed place."""
        if kind not in self._of_token:
            self._of_token[kind] = self._build.add(kind, [self._places, self._count])
        return self._of_token[kind]

    def _rows_of(self, name: str, rest: Shape) -> str:
        """Return a value as [-1, *rest]."""
        return self._build.add("Reshape", [name, self._build.integers(-1, *rest)])

    def _operand(self, name: str, layout: Layout) -> str | None:
        """Return the packed operand of an elementwise node with results of `layout`, or None."""
        if not name:
            return ""
        if name in self._packed:
            return self._pack(name) if self._ranks_equal(name, layout) else None
        if name in self._from_mask:
            return None
        if self._ranks_equal(name, layout):
            return self._pack(name)
        shapes = [shapes.get(name) for shapes in self._shapes]
        if shapes[0] is None or shapes[1] is None:
            return None
        rank = len(shapes[0])
        if rank < layout.rank - 1:
            return name  # it has no dimension of the tokens
        if layout.flat:
            return name
        return self._spread(name, shapes[0], shapes[1], layout)

    def _spread(self, name: str, first: Shape, second: Shape, layout: Layout) -> str | None:
        """Expand an operand of size 1 along rows or tokens to all valid tokens, if possible."""
        rest = first[len(first) - len(layout.rest) :]
        if rest != second[len(second) - len(layout.rest) :]:
            return None
        heads = [
            (1,) * (layout.rank - len(shape)) + shape[: len(shape) - len(rest)]
            for shape in (first, second)
        ]
        tokens = [size[1] for size in self._sizes]
        if heads == [(1, 1), (1, 1)]:
            return self._rows_of(name, rest)
        if heads == [(1, tokens[0]), (1, tokens[1])]:
            kind = "Mod"
        elif heads == [(self._sizes[0][0], 1), (self._sizes[1][0], 1)]:
            kind = "Div"
        else:
            return None
        if name not in self._given:
            rows = [self._rows_of(name, rest), self._index(kind)]
            self._given[name] = self._build.add("Gather", rows, axis=0)
        return self._given[name]

    def _ranks_equal(self, name: str, layout: Layout) -> bool:
        own = self._layout(name)
        return own is not None and own.flat == layout.flat and own.rank == layout.rank

    def _emit(self, node: NodeProto, inputs: Sequence[str], **changed: Value) -> bool:
        """Emit a copy of a node with packed inputs and results, and return True.

        Attributes whose new value is None are removed.
        """
        onnx = import_onnx()
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(inputs)
        kept = [own for own in copy.attribute if own.name not in changed]
        del copy.attribute[:]
        copy.attribute.extend(kept)
        copy.attribute.extend(
            onnx.helper.make_attribute(key, value)
            for key, value in changed.items()
            if value is not None
        )
        for place, name in enumerate(node.output):
            if name:
                copy.output[place] = self._packed[name] = self._build.name(name)
        if copy.name:
            copy.name = self._build.name(copy.name)
        self._build.nodes.append(copy)
        return True

    def _shape_of(self, node: NodeProto) -> None:
        """Emit the padded shape of a packed value, without unpacking the value."""
        layout = self._layout(node.input[0])
        assert layout is not None, "packed values have one"
        build = self._build
        head = self._shape
        if layout.flat:
            head = build.add("ReduceProd", [head], keepdims=1)
        parts = [head, build.integers(*layout.rest)] if layout.rest else [head]
        start, end = attribute(node, "start", 0), attribute(node, "end", layout.rank)
        whole = build.add("Concat", parts, axis=0)
        ends = build.integers(min(end, layout.rank))
        build.add("Slice", [whole, build.integers(start), ends], node.output[0])

    # -- rules: each emits a packed node, or returns False

    def _elementwise(self, node: NodeProto) -> bool:
        layout = self._layout(node.output[0])
        if layout is None:
            return False
        if attribute(node, "axis") is not None and not self._is_single(node.input[1]):
            return False  # QuantizeLinear with a scale for each channel
        operands = [self._operand(name, layout) for name in node.input]
        if any(operand is None for operand in operands):
            return False
        return self._emit(node, [operand or "" for operand in operands])

    def _is_single(self, name: str) -> bool:
        shape = self._shapes[0].get(name)
        return shape is not None and math.prod(shape) == 1

    def _linear(self, node: NodeProto) -> bool:
        data, layout = node.input[0], self._layout(node.input[0])
        if layout is None or len(self._shapes[0].get(node.input[1], ())) != 2:
            return False
        if any(self._layout(name) is not None for name in node.input[1:]):
            return False
        return self._emit(node, [self._pack(data), *node.input[1:]])

    def _embedding(self, node: NodeProto) -> bool:
        axis = attribute(node, "axis", 0)
        if axis or node.input[0] not in self._constants or self._layout(node.input[1]) is None:
            return False
        return self._emit(node, [node.input[0], self._pack(node.input[1])])

    def _along_features(self, node: NodeProto) -> bool:
        """Pack a node that works along one feature dimension, given by its attribute `axis`."""
        layout = self._layout(node.input[0])
        kind = operator(node)
        default = {"Split": 0, "Softmax": 1, "LogSoftmax": 1}.get(kind, -1)
        if kind in _SOFTMAX and self._opset >= 13:
            default = -1
        if layout is None:
            return False
        axis = self._feature_axis(attribute(node, "axis", default), layout)
        if axis is None:
            return False
        if any(name not in self._constants for name in node.input[1:] if name):
            return False
        if any(node.output[1:]) and kind in _NORMALISATIONS:
            return False
        return self._emit(node, [self._pack(node.input[0]), *node.input[1:]], axis=axis)

    def _feature_axis(self, axis: int, layout: Layout) -> int | None:
        """Return an axis counted from the end; None for the axis of the rows or tokens."""
        negative = axis - layout.rank if axis >= 0 else axis
        return negative if -len(layout.rest) <= negative < 0 else None

    def _reduction(self, node: NodeProto) -> bool:
        layout = self._layout(node.input[0])
        given = attribute(node, "axes")
        as_input = given is None and len(node.input) > 1 and bool(node.input[1])
        if as_input:
            given = self._values.get(node.input[1])
        if layout is None or given is None:
            return False
        axes = [self._feature_axis(int(axis), layout) for axis in given]
        own = [axis for axis in axes if axis is not None]
        if not own or len(own) < len(axes):
            return False
        data = self._pack(node.input[0])
        if as_input:
            return self._emit(node, [data, self._build.integers(*own)])
        return self._emit(node, [data], axes=own)

    def _concat(self, node: NodeProto) -> bool:
        layout = self._layout(node.output[0])
        if layout is None or not all(self._ranks_equal(name, layout) for name in node.input):
            return False
        if not self._from_mask.isdisjoint(node.input):
            return False
        axis = self._feature_axis(attribute(node, "axis"), layout)
        if axis is None:
            return False
        return self._emit(node, [self._pack(name) for name in node.input], axis=axis)

    def _slice(self, node: NodeProto) -> bool:
        layout = self._layout(node.input[0])
        if layout is None or len(node.input) < 4 or self._layout(node.output[0]) is None:
            return False
        given = self._values.get(node.input[3])
        if given is None or any(name not in self._constants for name in node.input[1:]):
            return False
        axes = [self._feature_axis(int(axis), layout) for axis in given.ravel()]
        own = [axis for axis in axes if axis is not None]
        if len(own) < len(axes):
            return False
        inputs = [self._pack(node.input[0]), *node.input[1:3], self._build.integers(*own)]
        return self._emit(node, [*inputs, *node.input[4:]])

    def _split_heads(self, node: NodeProto) -> bool:
        """Emit [rows, heads, tokens, width] of packed [total, heads, width], in one copy.

        The padded form of the node's input is then only computed if another node reads it.
        """
        name = node.input[0]
        layout = self._layout(name)
        if layout is None or layout.flat or len(layout.rest) != 2 or name not in self._packed:
            return False
        order = list(attribute(node, "perm", ()))
        if order not in ([0, 2, 1, 3], [0, 2, 3, 1]):
            return False
        heads, width = layout.rest
        build = self._build
        slots = self._of_heads.get(heads)
        if slots is None:
            # Indices into [total * heads, width]: slot * heads + head, as [rows, heads, tokens].
            shaped = build.add("Reshape", [self._slots, build.integers(0, 1, -1)])
            first = build.add("Mul", [shaped, build.integers(heads)])
            each = build.weight(np.arange(heads, dtype=np.int64).reshape(1, heads, 1))
            slots = self._of_heads[heads] = build.add("Add", [first, each])
        rows = self._rows_of(self._packed[name], (width,))
        transposed = order == [0, 2, 3, 1]
        output = None if transposed else node.output[0]
        split = build.add("Gather", [rows, slots], output, axis=0)
        if transposed:  # engines multiply by the transposed value without a copy
            build.add("Transpose", [split], node.output[0], perm=[0, 1, 3, 2])
        return True

    def _view(self, node: NodeProto) -> bool:
        before, after = self._layout(node.input[0]), self._layout(node.output[0])
        if before is None or after is None or math.prod(before.rest) != math.prod(after.rest):
            return False
        if node.input[0] not in self._packed:
            joined = self._joined_heads(node.output[0], after)
            if joined is not None:
                self._packed[node.output[0]] = joined
            return joined is not None
        packed = self._packed[node.output[0]] = self._build.name(node.output[0])
        shape = self._build.integers(-1, *after.rest)
        self._build.add("Reshape", [self._pack(node.input[0]), shape], packed)
        return True


_RULES: Final[Mapping[str, Callable[[_Rewrite, NodeProto], bool]]] = {
    **dict.fromkeys(_ELEMENTWISE, _Rewrite._elementwise),
    **dict.fromkeys(_REDUCTIONS, _Rewrite._reduction),
    **dict.fromkeys(_NORMALISATIONS | _SOFTMAX | {"Split"}, _Rewrite._along_features),
    **dict.fromkeys(_VIEWS, _Rewrite._view),
    **dict.fromkeys(LINEAR, _Rewrite._linear),
    "Gather": _Rewrite._embedding,
    "Concat": _Rewrite._concat,
    "Slice": _Rewrite._slice,
    "Transpose": _Rewrite._split_heads,
}
