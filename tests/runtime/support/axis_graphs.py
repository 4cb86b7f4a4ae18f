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
    """The version folder of a model of this graph."""
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
    """A convolution without padding: of a line of 7 samples or fewer nothing is left."""
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
