"""Graphs with the traits of real ones: strides, constant inputs, a fixed batch, recurrent state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from runtime.support.configs import model_config, tensor
from runtime.support.graphs import onnx_model

FLOAT = TensorProto.FLOAT


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    """Return the version folder of a model with this graph."""
    version_dir = folder / "1"
    version_dir.mkdir(parents=True, exist_ok=True)
    onnx.checker.check_model(model)
    onnx.save(model, version_dir / "model.onnx")
    return version_dir


def strided(batch: int | str = "batch") -> onnx.ModelProto:
    """Images of which the mean of each 4 x 4 pixels is added to these, times an input `gain`.

    As detectors do, it fails at sizes that are no multiples of its stride.
    """
    node = helper.make_node
    return onnx_model(
        [
            node("AveragePool", ["image"], ["coarse"], kernel_shape=[4, 4], strides=[4, 4]),
            node("Resize", ["coarse", "", "scales"], ["fine"], mode="nearest"),
            node("Add", ["image", "fine"], ["sum"]),
            node("Mul", ["sum", "gain"], ["map"]),
        ],
        [("image", FLOAT, [batch, 1, "height", "width"]), ("gain", FLOAT, [])],
        [("map", FLOAT, [batch, 1, "height", "width"])],
        {"scales": np.array([1, 1, 4, 4], np.float32)},
    )


def strided_config(parameters=None, **more):
    return model_config(
        [tensor("image", "FP32", [1, -1, -1])],
        [tensor("map", "FP32", [1, -1, -1])],
        {
            "axes.image": "height, width",
            "axes.map": "height, width",
            "limit.height": "16",
            "limit.width": "32",
            "align.height": "4",
            "align.width": "4",
            "constant.gain": "0.5",
            **(parameters or {}),
        },
        **{"name": "strided", **more},
    )


def valid(batch: int | str = "batch") -> onnx.ModelProto:
    """Return a convolution without padding: a line of 7 samples or fewer has an empty result."""
    return onnx_model(
        [helper.make_node("Conv", ["line", "kernel"], ["sums"], strides=[2])],
        [("line", FLOAT, [batch, 1, "samples"])],
        [("sums", FLOAT, [batch, 1, "frames"])],
        {"kernel": np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 1, 8)},
    )


def valid_config(parameters=None, **more):
    return model_config(
        [tensor("line", "FP32", [1, -1])],
        [tensor("sums", "FP32", [1, -1])],
        {
            "axes.line": "samples",
            "axes.sums": "(samples - 8) // 2 + 1",
            "limit.samples": "300",
            **(parameters or {}),
        },
        **{"name": "valid", **more},
    )


def recurrent(batch: int | str = "batch", layers: int | str = 2) -> onnx.ModelProto:
    """Adds x to half of each state of [layers, batch, 3], and answers the sum of the layers.

    With other names for sizes of the next state than for those of the state, as exporters leave.
    """
    node = helper.make_node
    return onnx_model(
        [
            node("Mul", ["state", "half"], ["faded"]),
            node("Unsqueeze", ["x", "first"], ["layer"]),
            node("Add", ["faded", "layer"], ["next"]),
            node("ReduceSum", ["next", "first"], ["y"], keepdims=0),
        ],
        [("x", FLOAT, [batch, 3]), ("state", FLOAT, [layers, batch, 3])],
        [("y", FLOAT, [batch, 3]), ("next", FLOAT, ["a", "b", "c"])],
        {"half": np.array(0.5, np.float32), "first": np.array([0], np.int64)},
    )


OLDEST = {"oldest": {"max_candidate_sequences": 4}}


def recurrent_config(parameters=None, **more):
    return model_config(
        [tensor("x", "FP32", [3])],
        [tensor("y", "FP32", [3])],
        {
            "state.state": "next",
            "batch_axis.state": "1",
            "batch_axis.next": "1",
            **(parameters or {}),
        },
        **{"name": "recurrent", "sequence_batching": OLDEST, **more},
    )


def time_major() -> onnx.ModelProto:
    """Frames [tokens, batch, 2], of which those within the mask are doubled, and their sums."""
    node = helper.make_node
    return onnx_model(
        [
            node("Unsqueeze", ["mask", "last"], ["wide"]),
            node("Mul", ["frames", "wide"], ["inside"]),
            node("Add", ["inside", "inside"], ["doubled"]),
            node("ReduceSum", ["inside", "first"], ["sums"], keepdims=0),
        ],
        [("frames", FLOAT, ["t", "n", 2]), ("mask", FLOAT, ["t", "n"])],
        [("doubled", FLOAT, ["t", "n", 2]), ("sums", FLOAT, ["n", 2])],
        {"last": np.array([2], np.int64), "first": np.array([0], np.int64)},
    )


def time_major_config(parameters=None, **more):
    return model_config(
        [tensor("frames", "FP32", [-1, 2], allow_ragged_batch=True)],
        [tensor("doubled", "FP32", [-1, 2]), tensor("sums", "FP32", [2])],
        {
            "axes.frames": "tokens",
            "axes.doubled": "tokens",
            "limit.tokens": "20",
            "mask.mask": "tokens",
            "batch_axis.frames": "1",
            "batch_axis.mask": "1",
            "batch_axis.doubled": "1",
            **(parameters or {}),
        },
        **{"name": "time_major", **more},
    )


def rated() -> onnx.ModelProto:
    """Rows times a `rate` that an execution has one of, and the rate of each of two channels."""
    node = helper.make_node
    return onnx_model(
        [node("Mul", ["x", "rate"], ["y"]), node("Mul", ["rate", "two"], ["rates"])],
        [("x", FLOAT, ["n", 2]), ("rate", FLOAT, [1])],
        [("y", FLOAT, ["n", 2]), ("rates", FLOAT, [2])],
        {"two": np.array([1, 2], np.float32)},
    )


def rated_config(parameters=None, **more):
    return model_config(
        [tensor("x", "FP32", [2]), tensor("rate", "FP32", [1])],
        [tensor("y", "FP32", [2]), tensor("rates", "FP32", [2])],
        {"batch_axis.rate": "none", "batch_axis.rates": "none", **(parameters or {})},
        **{"name": "rated", **more},
    )


ATTENTIVE_IDS = 50
"""Token ids are below this number."""


def attentive() -> onnx.ModelProto:
    """Token ids to embeddings by attention, whose rounding depends on the execution's shape."""
    rng = np.random.default_rng(3)
    node = helper.make_node
    return onnx_model(
        [
            node("Gather", ["table", "input_ids"], ["vectors"]),
            node("MatMul", ["vectors", "inner"], ["hidden"]),
            node("Tanh", ["hidden"], ["bent"]),
            node("Transpose", ["bent"], ["turned"], perm=[0, 2, 1]),
            node("MatMul", ["bent", "turned"], ["pairs"]),
            node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
            node("Unsqueeze", ["mask", "one"], ["keys"]),
            node("Sub", ["keys", "unit"], ["below"]),
            node("Mul", ["below", "much"], ["hide"]),
            node("Add", ["pairs", "hide"], ["seen"]),
            node("Softmax", ["seen"], ["shares"], axis=-1),
            node("MatMul", ["shares", "bent"], ["mixed"]),
            node("Unsqueeze", ["mask", "two"], ["column"]),
            node("Mul", ["mixed", "column"], ["data"]),
            node("ReduceSum", ["data", "one"], ["total"], keepdims=0),
            node("MatMul", ["total", "outer"], ["embedding"]),
        ],
        [
            ("input_ids", TensorProto.INT64, ["batch", "tokens"]),
            ("attention_mask", TensorProto.INT64, ["batch", "tokens"]),
        ],
        [("embedding", FLOAT, ["batch", 4])],
        {
            "table": rng.uniform(-1, 1, (ATTENTIVE_IDS, 64)).astype(np.float32),
            "inner": rng.uniform(-1, 1, (64, 64)).astype(np.float32),
            "outer": rng.uniform(-1, 1, (64, 4)).astype(np.float32),
            "one": np.array([1]),
            "two": np.array([2]),
            "unit": np.float32([1]),
            "much": np.float32([1e4]),
        },
    )


def one_row() -> onnx.ModelProto:
    """A graph that fails with more rows than one."""
    node = helper.make_node
    return onnx_model(
        [
            node("Reshape", ["x", "one"], ["flat"]),
            node("MatMul", ["flat", "weights"], ["y"]),
        ],
        [("x", FLOAT, ["batch", 2, 4])],
        [("y", FLOAT, ["batch", 3])],
        {"one": np.array([1, 8]), "weights": np.ones((8, 3), np.float32)},
    )


def summing() -> onnx.ModelProto:
    """A graph whose state is the sum of all inputs of a sequence."""
    return onnx_model(
        [
            helper.make_node("Add", ["x", "state"], ["state_out"]),
            helper.make_node("Tanh", ["state_out"], ["y"]),
        ],
        [("x", FLOAT, ["batch", 4]), ("state", FLOAT, ["batch", 4])],
        [("y", FLOAT, ["batch", 4]), ("state_out", FLOAT, ["batch", 4])],
        {},
    )
