"""A graph that returns its images, and configurations that convert them from bytes."""

import onnx
from onnx import TensorProto, helper
from runtime.support.configs import model_config, tensor
from runtime.support.graphs import onnx_model

RGB = "input_format=RGB888_U8, min_chn=123.675 116.28 103.53, var_reci_chn=0.0171 0.0175 0.0174"


def shown_graph(channels=3, height="height", width="width", *, kind=TensorProto.FLOAT):
    """Return a graph that returns its image and the sum of each channel."""
    dims = ["batch", channels, height, width]
    nodes = [
        helper.make_node("Identity", ["image"], ["made"]),
        helper.make_node("ReduceSum", ["image", "sides"], ["sums"], keepdims=0),
    ]
    outputs = [("made", kind, dims), ("sums", kind, ["batch", channels])]
    return onnx_model(nodes, [("image", kind, dims)], outputs, {"sides": [2, 3]})


def write_shown(folder, *sizes, **more):
    onnx.save(shown_graph(*sizes, **more), folder / "model.onnx")
    return folder


def images_config(aipp, source, made, parameters=None, **more):
    """source: the dims of the clients' images. made: the dims of the graph's input."""
    return model_config(
        [tensor("image", "UINT8", source)],
        [tensor("made", "FP32", made), tensor("sums", "FP32", made[:1])],
        {"aipp.image": aipp, **(parameters or {})},
        **{"name": "images", **more},
    )
