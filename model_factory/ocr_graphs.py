"""The graphs of PP-OCRv4 as served: pixels in, and of the recogniser characters out.

The published graphs take FP32 [rows, 3, height, width], blue first, from -1 to 1. Served ones take
the images that clients have, UINT8 [rows, height, width, 3], red first: a quarter of the bytes to
move. The published recogniser gives the probabilities of 6,625 characters at each step, 26,500
bytes of which twelve are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_factory.published import RAPIDOCR, read_member

if TYPE_CHECKING:
    from onnx import ModelProto

_MEMBERS = "rapidocr_onnxruntime/models/"


def detection_graph() -> bytes:
    """`page` to `probability`, FP32 [rows, height, width]: of the core of a line, at each pixel."""
    from onnx import TensorProto, helper

    model = _read("ch_PP-OCRv4_det_infer.onnx")
    probabilities = _take_pixels(model, "page", "height", "width")
    model.graph.node.append(helper.make_node("Squeeze", [probabilities], ["probability"], axes=[1]))
    shape = ["rows", "height", "width"]
    _give(model, helper.make_tensor_value_info("probability", TensorProto.FLOAT, shape))
    return _serialized(model)


def angle_graph() -> bytes:
    """`line` to `probability`, FP32 [rows, 2]: that it is upright, that it is upside down."""
    from onnx import TensorProto, helper

    model = _read("ch_ppocr_mobile_v2.0_cls_infer.onnx")
    probabilities = _take_pixels(model, "line", 48, 192)
    model.graph.node.append(helper.make_node("Identity", [probabilities], ["probability"]))
    _give(model, helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["rows", 2]))
    return _serialized(model)


def recognition_graph() -> bytes:
    """`line` to each step's likeliest `character`, INT64 [rows, steps], and its `probability`."""
    from onnx import TensorProto, helper

    model = _read("ch_PP-OCRv4_rec_infer.onnx")
    probabilities = _take_pixels(model, "line", 48, "width")
    shape = ["rows", "steps"]
    outputs = [
        helper.make_tensor_value_info("character", TensorProto.INT64, shape),
        helper.make_tensor_value_info("probability", TensorProto.FLOAT, shape),
    ]
    for operator, output in zip(("ArgMax", "ReduceMax"), outputs, strict=True):
        arguments = {"axis": 2} if operator == "ArgMax" else {"axes": [2]}
        model.graph.node.append(
            helper.make_node(operator, [probabilities], [output.name], keepdims=0, **arguments)
        )
    _give(model, *outputs)
    return _serialized(model)


def characters() -> list[str]:
    """What the recogniser's numbers stand for; 0 is the blank between characters."""
    model = _read("ch_PP-OCRv4_rec_infer.onnx")
    (published,) = (entry.value for entry in model.metadata_props if entry.key == "character")
    return ["", *published.split("\n"), " "]


def _read(name: str) -> ModelProto:
    import onnx

    return onnx.load_from_string(read_member(RAPIDOCR.fetch(), _MEMBERS + name))


def _take_pixels(model: ModelProto, name: str, height: str | int, width: str | int) -> str:
    """Give the graph the input `name`, of pixels, for its own; returns the name of its result."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    (published,), (result,) = graph.input, graph.output
    constants = {
        "blue_first": np.array([2, 1, 0]),
        "half_range": np.array(127.5, np.float32),
        "one": np.array(1, np.float32),
    }
    graph.initializer.extend(
        numpy_helper.from_array(value, f"{name}.{constant}")
        for constant, value in constants.items()
    )
    steps = [
        helper.make_node("Cast", [name], [f"{name}.fp32"], to=TensorProto.FLOAT),
        helper.make_node("Div", [f"{name}.fp32", f"{name}.half_range"], [f"{name}.to_two"]),
        helper.make_node("Sub", [f"{name}.to_two", f"{name}.one"], [f"{name}.scaled"]),
        helper.make_node("Transpose", [f"{name}.scaled"], [f"{name}.planes"], perm=[0, 3, 1, 2]),
        helper.make_node(
            "Gather", [f"{name}.planes", f"{name}.blue_first"], [published.name], axis=1
        ),
    ]
    nodes = [*steps, *graph.node]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    shape = ["rows", height, width, 3]
    graph.input.append(helper.make_tensor_value_info(name, TensorProto.UINT8, shape))
    output: str = result.name
    return output


def _give(model: ModelProto, *outputs: object) -> None:
    """Have the graph give these results alone, and nothing said of the shapes between."""
    graph = model.graph
    del graph.output[:], graph.value_info[:]
    graph.output.extend(outputs)


def _serialized(model: ModelProto) -> bytes:
    import onnx

    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content
