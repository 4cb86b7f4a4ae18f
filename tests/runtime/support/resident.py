"""Two models of an ensemble with a tensor between them in the device service."""

import numpy as np
import onnx
from onnx import TensorProto, helper
from runtime.support.configs import encoder_config, model_config, tensor
from runtime.support.graphs import onnx_model

SERVICE = {"placement": "service", "cost": "launch_us=100, element_ns=100, element2_ns=0"}
HANDLES = tensor("embedding", "UINT64", [4])
SCORES = np.arange(8, dtype=np.float32).reshape(4, 2)


def giver(parameters=None, *, name="encoder", **more):
    """Return the configuration of `graphs.ENCODER` with resident embeddings."""
    own = {**SERVICE, "resident.embedding": "FP32[4]", **(parameters or {})}
    return {**encoder_config(own, name=name, **more), "output": [HANDLES]}


def taker(parameters=None, *, name="scores", **more):
    """Return the configuration of `write_scores`: scores of the encoder's embeddings."""
    own = {**SERVICE, "resident.embedding": "FP32[4] of encoder", **(parameters or {})}
    return model_config([HANDLES], [tensor("scores", "FP32", [2])], own, name=name, **more)


def write_scores(folder):
    """Write a graph from embedding [batch, 4] to scores [batch, 2]."""
    folder.mkdir(parents=True, exist_ok=True)
    graph = onnx_model(
        [helper.make_node("MatMul", ["embedding", "w"], ["scores"])],
        [("embedding", TensorProto.FLOAT, ["batch", 4])],
        [("scores", TensorProto.FLOAT, ["batch", 2])],
        {"w": SCORES},
    )
    onnx.save(graph, folder / "model.onnx")
    return folder


def tokens(*row):
    """Return a request of one row for the encoder."""
    return {"input_ids": np.array([row]), "lengths": np.array([[len(row)]], np.int32)}
