"""The digit classifier as an ONNX graph, written straight from its parameters.

Images of different sizes share a batch, so every level is masked: not even a NaN in the padding
can reach an answer. `digits_torch` is the same network, written for training it;
`docs/models.md` follows the shapes through it.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from model_factory.digits_images import Floats
from model_factory.digits_parameters import CHANNELS, CLASSES, GRID, LEAST_TOTAL
from model_factory.onnx_graph import GraphWriter

_TO_THE_END = np.iinfo(np.int64).max
"""Where a Slice ends that keeps everything."""


def classifier_model(parameters: dict[str, Floats]) -> ModelProto:
    """The classifier over `parameters`, which are those of `digits_parameters.shapes`.

    Inputs: `image` float32 [batch, 1, height, width] and `mask` float32 [batch, height, width],
    1 on an image's pixels, which lie top left, and 0 on padding, where `image` may hold anything.
    Output: `logits` float32 [batch, 10].
    """
    graph = GraphWriter()
    image = graph.input("image", np.float32, ["batch", 1, "height", "width"])
    mask = graph.input("mask", np.float32, ["batch", "height", "width"])
    graph.output("logits", np.float32, ["batch", CLASSES])
    for name, array in parameters.items():
        graph.constant(name, array)

    inside = graph.node("Unsqueeze", mask, axes=[1])  # [batch, 1, height, width]
    zero = _number(graph, 0)
    # Where, since a NaN survives a multiplication by zero.
    features = graph.node("Where", graph.node("Greater", inside, zero), image, zero)
    rows = _Axis(graph, inside)
    columns = _Axis(graph, graph.node("Transpose", inside, perm=[0, 1, 3, 2]))
    pooled = []
    for level in range(len(CHANNELS)):
        stride = 1 if level == 0 else 2
        if level > 0:
            inside = _every_second(graph, inside, [2, 3])
            rows.halve()
            columns.halve()
        features = graph.node(
            "Conv",
            features,
            f"levels.{level}.weight",
            f"levels.{level}.bias",
            strides=[stride, stride],
            pads=[1, 1, 1, 1],
        )
        features = graph.node("Mul", graph.node("Relu", features), inside)
        by_row = graph.node("Transpose", rows.shares(), perm=[0, 1, 3, 2])
        lines = graph.node("MatMul", by_row, features)  # [batch, channels, GRID, width]
        pooled.append(graph.node("MatMul", lines, columns.shares()))

    joined = graph.node("Flatten", graph.node("Concat", *pooled, axis=1), axis=1)
    hidden = graph.node("Gemm", joined, "hidden.weight", "hidden.bias", transB=1)
    hidden = graph.node("Relu", hidden)
    graph.node("Gemm", hidden, "output.weight", "output.bias", transB=1, name="logits")
    return graph.model("ge_classifier", "handwritten digits in images of any size, masked")


class _Axis:
    """The rows or the columns of the batch's images, and how their pixels share in the grid.

    Positions and lengths are in pixels of the original images, whatever the level; n is the
    number of pixels along the padded axis, which `halve` halves.
    """

    def __init__(self, graph: GraphWriter, inside: str) -> None:
        """inside: the mask as [batch, 1, n, m], this axis before the other."""
        self._graph = graph
        self._pitch = 1  # pixels from one position to the next
        self._valid = graph.node("ReduceMax", inside, axes=[3])  # [batch, 1, n, 1], 0 or 1
        length = graph.node("ReduceSum", self._valid, axes=[2])  # [batch, 1, 1, 1]
        # A running count of the valid pixels, less half a pixel: the middle of each.
        count = graph.node("CumSum", self._valid, graph.constant("axis_n", np.int64(2)))
        self._middles = graph.node("Sub", count, _number(graph, 0.5))
        cells = (np.arange(GRID, dtype=np.float32) + np.float32(0.5)) / GRID
        self._cells = graph.node("Mul", length, graph.constant("cells", cells))
        self._cell_length = graph.node("Div", length, _number(graph, GRID))

    def halve(self) -> None:
        """Go to the next level, which keeps every second position."""
        self._pitch *= 2
        self._valid = _every_second(self._graph, self._valid, [2])
        self._middles = _every_second(self._graph, self._middles, [2])

    def shares(self) -> str:
        """[batch, 1, n, GRID]: how much of each grid cell each position supplies, in all 1.

        A tent over the middle of the cell, as image libraries shrink an image: it falls to zero
        one cell away, or one position away where positions lie further apart than cells.
        """
        graph = self._graph
        reach = graph.node("Max", self._cell_length, _number(graph, self._pitch))
        distance = graph.node("Abs", graph.node("Sub", self._middles, self._cells))
        tent = graph.node("Sub", _number(graph, 1), graph.node("Div", distance, reach))
        weights = graph.node("Mul", graph.node("Relu", tent), self._valid)
        total = graph.node("ReduceSum", weights, axes=[2])
        # Of a real image it is at least 1/8; the floor spares a row that is all padding a NaN.
        return graph.node("Div", weights, graph.node("Max", total, _number(graph, LEAST_TOTAL)))


def _every_second(graph: GraphWriter, x: str, axes: list[int]) -> str:
    """Positions 0, 2, 4, ... along `axes`: those on which a convolution of stride 2 is centred."""

    def each(value: int) -> str:
        return graph.constant(f"{value}_x{len(axes)}", np.full(len(axes), value, np.int64))

    which = graph.constant("_".join(map(str, ("axes", *axes))), np.array(axes, np.int64))
    return graph.node("Slice", x, each(0), each(_TO_THE_END), which, each(2))


def _number(graph: GraphWriter, value: float) -> str:
    return graph.constant(f"{value:g}", np.float32(value))
