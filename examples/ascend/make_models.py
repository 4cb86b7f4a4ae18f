"""Build the models of the Ascend examples, which return ten scores for images [n, 3, h, w].

python examples/ascend/make_models.py FOLDER [SOC]: writes ONNX and compiles it with `atc`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLAGS = {
    "static": {"input_shape": "image:1,3,32,32"},
    "batch": {"input_shape": "image:-1,3,32,32", "dynamic_batch_size": "1,2,4,8"},
    "sides": {"input_shape": "image:1,3,-1,-1", "dynamic_image_size": "16,16;32,32;32,48"},
}
"""ATC options by model name."""


def weights() -> np.ndarray:
    """Return the weight of each colour for each class, [3, 10]."""
    return np.random.default_rng(7).normal(size=(3, 10)).astype(np.float32)


def classifier() -> onnx.ModelProto:
    """Return a graph that multiplies the mean colour of an image with the weights."""
    dims = ["n", 3, "h", "w"]
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["image"], ["mean"], name="mean"),
            helper.make_node("Flatten", ["mean"], ["colour"], name="colour"),
            helper.make_node("MatMul", ["colour", "weights"], ["scores"], name="scores"),
        ],
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(weights(), "weights")],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def flags(name: str, folder: Path, soc: str) -> list[str]:
    """Return ATC's flags for a model with its ONNX file in the folder."""
    given = {
        "framework": "5",
        "model": str(folder / "classifier.onnx"),
        "output": str(folder / name),
        "soc_version": soc,
        "precision_mode_v2": "origin",
        **FLAGS[name],
    }
    return [f"--{flag}={value}" for flag, value in given.items()]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    chip = sys.argv[2] if len(sys.argv) > 2 else "AscendSimulator"
    target.mkdir(parents=True, exist_ok=True)
    onnx.save(classifier(), target / "classifier.onnx")
    for model in FLAGS:
        subprocess.run(["atc", *flags(model, target, chip)], check=True)
