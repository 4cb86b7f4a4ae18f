"""Tiny graphs, each written twice: as ONNX and as a torch.export program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

FILES = {"onnxruntime": "model.onnx", "torch": "model.pt2"}

TABLE = np.arange(16 * 4, dtype=np.float32).reshape(16, 4) / 8
"""The encoder's embeddings; an id of 16 or more makes an engine fail."""


@dataclass(frozen=True)
class Graph:
    name: str
    onnx: Callable[[], onnx.ModelProto]
    torch: Callable[[], tuple[object, tuple[object, ...]]]
    """A module and example arguments; all sizes vary except those in `fixed`."""
    fixed: tuple[tuple[int, ...], ...]
    """The dimensions of each input that do not vary."""


def write(graph: Graph, engine: str, folder: Path) -> Path:
    """Write the graph's artifact for `engine` to `folder`; skip the test without torch."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILES[engine]
    if engine == "onnxruntime":
        onnx.save(graph.onnx(), path)
        return path
    torch = pytest.importorskip("torch", reason="the torch engine needs torch")
    module, arguments = graph.torch()
    dynamic = tuple(
        {dim: torch.export.Dim.DYNAMIC for dim in range(value.dim()) if dim not in fixed}
        for value, fixed in zip(arguments, graph.fixed, strict=True)
    )
    torch.export.save(torch.export.export(module, arguments, dynamic_shapes=dynamic), path)
    return path


def onnx_model(nodes, inputs, outputs, constants=None) -> onnx.ModelProto:
    """inputs, outputs: (name, ONNX element type, dims); constants: name to array."""
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def onnx_text(text, **constants) -> onnx.ModelProto:
    """Return a graph in ONNX's text form, to which these constants are added."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]>\ng {text}')
    weights = [numpy_helper.from_array(np.asarray(own), name) for name, own in constants.items()]
    model.graph.initializer.extend(weights)
    return model


# -- encoder: the mean of the embeddings of the tokens that the mask leaves ------------------


def _encoder_onnx() -> onnx.ModelProto:
    node = helper.make_node
    return onnx_model(
        [
            node("Gather", ["table", "input_ids"], ["tokens"]),
            node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["mask", "last"], ["column"]),
            node("Mul", ["tokens", "column"], ["kept"]),
            node("ReduceSum", ["kept", "tokens_axis"], ["sum"], keepdims=0),
            node("ReduceSum", ["mask", "tokens_axis"], ["count"], keepdims=1),
            node("Div", ["sum", "count"], ["embedding"]),
        ],
        [
            ("input_ids", TensorProto.INT64, ["batch", "tokens"]),
            ("attention_mask", TensorProto.INT64, ["batch", "tokens"]),
        ],
        [("embedding", TensorProto.FLOAT, ["batch", 4])],
        {"table": TABLE, "last": np.array([2]), "tokens_axis": np.array([1])},
    )


def _encoder_torch():
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.from_numpy(TABLE))

        def forward(self, input_ids, attention_mask):
            mask = attention_mask.to(torch.float32)
            kept = torch.nn.functional.embedding(input_ids, self.table) * mask[:, :, None]
            return {"embedding": kept.sum(1) / mask.sum(1, keepdim=True)}

    # Two tensors: torch.export treats one given twice as a single input.
    return Encoder(), tuple(torch.ones(2, 2, 5, dtype=torch.int64).unbind())


ENCODER = Graph("encoder", _encoder_onnx, _encoder_torch, ((), ()))


def encode(rows) -> np.ndarray:
    """Return NumPy's answer for lists of token ids: [rows, 4]."""
    return np.stack([TABLE[np.asarray(row)].mean(axis=0) for row in rows])


# -- pixels: sums over an image, and an image of the same size --------------------------------


def _pixels_onnx() -> onnx.ModelProto:
    node = helper.make_node
    return onnx_model(
        [
            node("Unsqueeze", ["mask", "channel"], ["channel_mask"]),
            node("Mul", ["image", "channel_mask"], ["kept"]),
            node("ReduceSum", ["kept", "pixel_axes"], ["sum"], keepdims=0),
            node("ReduceSum", ["channel_mask", "pixel_axes"], ["count"], keepdims=0),
            node("Concat", ["sum", "count"], ["sums"], axis=1),
            node("Sub", ["one", "image"], ["inverted"]),
        ],
        [
            ("image", TensorProto.FLOAT, ["batch", 1, "height", "width"]),
            ("mask", TensorProto.FLOAT, ["batch", "height", "width"]),
        ],
        [
            ("sums", TensorProto.FLOAT, ["batch", 2]),
            ("inverted", TensorProto.FLOAT, ["batch", 1, "height", "width"]),
        ],
        {"channel": np.array([1]), "pixel_axes": np.array([2, 3]), "one": np.float32(1)},
    )


def _pixels_torch():
    import torch

    class Pixels(torch.nn.Module):
        def forward(self, image, mask):
            mask = mask[:, None]
            sums = [(image * mask).sum((2, 3)), mask.sum((2, 3))]
            return {"sums": torch.cat(sums, 1), "inverted": 1 - image}

    return Pixels(), (torch.ones(2, 1, 3, 5), torch.ones(2, 3, 5))


PIXELS = Graph("pixels", _pixels_onnx, _pixels_torch, ((1,), ()))


def sums(image, mask) -> np.ndarray:
    """Return NumPy's first answer, [batch, 2]."""
    return np.stack([(image[:, 0] * mask).sum((1, 2)), mask.sum((1, 2))], axis=1)


# -- edges: two convolutions over an image and the mean of all pixels; neither knows of padding --

KERNELS = np.random.default_rng(7).uniform(-1, 1, (2, 1, 1, 3, 3)).astype(np.float32)


def _edges_onnx() -> onnx.ModelProto:
    node = helper.make_node
    return onnx_model(
        [
            node("Conv", ["image", "first", "bias"], ["blurred"], pads=[1, 1, 1, 1]),
            node("Relu", ["blurred"], ["bright"]),
            node("Conv", ["bright", "second"], ["edges"], pads=[1, 1, 1, 1]),
            node("GlobalAveragePool", ["edges"], ["pooled"]),
            node("Flatten", ["pooled"], ["mean"]),
        ],
        [("image", TensorProto.FLOAT, ["batch", 1, "height", "width"])],
        [
            ("edges", TensorProto.FLOAT, ["batch", 1, "height", "width"]),
            ("mean", TensorProto.FLOAT, ["batch", 1]),
        ],
        {"first": KERNELS[0], "second": KERNELS[1], "bias": np.ones(1, np.float32)},
    )


def _edges_torch():
    import torch

    class Edges(torch.nn.Module):
        def forward(self, image):
            first, second = map(torch.from_numpy, KERNELS)
            bright = torch.relu(torch.conv2d(image, first, torch.ones(1), padding=1))
            edges = torch.conv2d(bright, second, padding=1)
            return {"edges": edges, "mean": edges.mean((1, 2, 3))[:, None]}

    return Edges(), (torch.ones(2, 1, 3, 5),)


EDGES = Graph("edges", _edges_onnx, _edges_torch, ((1,),))


# -- copy: one input of any type, returned; nonzero: a result of unforeseeable size -----------


def copy_of(dtype) -> Graph:
    """x [batch, 3] to y [batch, 3], both of this NumPy type; torch returns it without a name."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def as_onnx() -> onnx.ModelProto:
        return onnx_model(
            [helper.make_node("Identity", ["x"], ["y"])],
            [("x", element, ["batch", 3])],
            [("y", element, ["batch", 3])],
        )

    def as_torch():
        import torch

        class Copy(torch.nn.Module):
            def forward(self, x):
                return x.clone()

        return Copy(), (torch.from_numpy(np.ones((2, 3), dtype)),)

    return Graph(f"copy_{np.dtype(dtype).name}", as_onnx, as_torch, ((1,),))


def _nonzero_onnx() -> onnx.ModelProto:
    return onnx_model(
        [helper.make_node("NonZero", ["x"], ["where"])],
        [("x", TensorProto.FLOAT, ["n"])],
        [("where", TensorProto.INT64, [1, "found"])],
    )


def _nonzero_torch():
    import torch

    class NonZero(torch.nn.Module):
        def forward(self, x):
            return {"where": torch.nonzero(x).T}

    return NonZero(), (torch.ones(5),)


NONZERO = Graph("nonzero", _nonzero_onnx, _nonzero_torch, ((),))


def _bfloat16_onnx() -> onnx.ModelProto:
    return onnx_model(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.BFLOAT16, ["batch", 3])],
        [("y", TensorProto.BFLOAT16, ["batch", 3])],
    )


def _bfloat16_torch():
    import torch

    class Copy(torch.nn.Module):
        def forward(self, x):
            return x.clone()

    return Copy(), (torch.ones(2, 3, dtype=torch.bfloat16),)


BFLOAT16 = Graph("bfloat16", _bfloat16_onnx, _bfloat16_torch, ((1,),))


# -- packed: texts end to end; each token's embedding times its place, and their sum per text ---


def _packed_onnx() -> onnx.ModelProto:
    node = helper.make_node
    return onnx_model(
        [
            node("Gather", ["table", "input_ids"], ["embedded"]),
            node("Cast", ["position_ids"], ["places"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["places", "last"], ["column"]),
            node("Mul", ["embedded", "column"], ["tokens"]),
            node("CumSum", ["tokens", "first"], ["running"]),
            node("Concat", ["zeros", "running"], ["before"], axis=0),
            node("Slice", ["cu_seqlens", "nought", "minus"], ["starts"]),
            node("Squeeze", ["lengths", "last"], ["counts"]),
            node("Add", ["starts", "counts"], ["ends"]),
            node("Gather", ["before", "starts"], ["sum_before"]),
            node("Gather", ["before", "ends"], ["sum_after"]),
            node("Sub", ["sum_after", "sum_before"], ["sums"]),
        ],
        [
            ("input_ids", TensorProto.INT64, ["total"]),
            ("position_ids", TensorProto.INT64, ["total"]),
            ("cu_seqlens", TensorProto.INT32, ["offsets"]),
            ("lengths", TensorProto.INT32, ["batch", 1]),
        ],
        [
            ("tokens", TensorProto.FLOAT, ["total", 4]),
            ("sums", TensorProto.FLOAT, ["batch", 4]),
        ],
        {
            "table": TABLE,
            "last": np.array([1]),
            "first": np.array(0),
            "zeros": np.zeros((1, 4), np.float32),
            "nought": np.array([0]),
            "minus": np.array([-1]),
        },
    )


def _packed_torch():
    import torch

    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.from_numpy(TABLE))

        def forward(self, input_ids, position_ids, cu_seqlens, lengths):
            embedded = torch.nn.functional.embedding(input_ids, self.table)
            tokens = embedded * position_ids.to(torch.float32)[:, None]
            running = torch.cat([torch.zeros(1, 4), tokens.cumsum(0)])
            # As many as there are lengths: of n - 1 starts torch.export takes a single one for
            # special.
            starts = cu_seqlens.index_select(0, torch.arange(lengths.shape[0]))
            ends = starts + lengths[:, 0]
            sums = running.index_select(0, ends) - running.index_select(0, starts)
            return {"tokens": tokens, "sums": sums}

    ids, places = torch.ones(2, 5, dtype=torch.int64).unbind()
    offsets, lengths = torch.tensor([0, 2, 5]), torch.tensor([[2], [3]])
    return Packed(), (ids, places, offsets.to(torch.int32), lengths.to(torch.int32))


PACKED = Graph("packed", _packed_onnx, _packed_torch, ((), (), (), (1,)))
