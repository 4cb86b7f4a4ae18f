"""Silero VAD's graph as served: a stream's samples in, what it remembers in and out."""

from __future__ import annotations

from model_factory.published import SILERO_VAD, read_member

SAMPLES = 512
"""Of a chunk: 32 ms at 16 kHz."""
CONTEXT = 64
"""How many samples of the chunk before the network sees as well."""


def voice_graph() -> bytes:
    """`samples` FP32 [rows, 512] to `probability` FP32 [rows, 1].

    Beside the published `state` to `next_state`, FP32 [2, rows, 128], the chunk's end travels:
    `context` to `next_context`, FP32 [rows, 64]. The published graph leaves that to its callers.
    `sr` stays an input, the rate in Hz.
    """
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load_from_string(
        read_member(SILERO_VAD.fetch(), "silero_vad/data/silero_vad_16k_op15.onnx")
    )
    graph = model.graph
    bounds = {"context.from": np.array([-CONTEXT]), "context.to": np.array([SAMPLES])}
    bounds["context.axis"] = np.array([1])
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in bounds.items())
    nodes = [
        helper.make_node("Concat", ["context", "samples"], ["input"], axis=1),
        helper.make_node("Slice", ["samples", *bounds], ["next_context"]),
        *graph.node,
        helper.make_node("Identity", ["output"], ["probability"]),
        helper.make_node("Identity", ["stateN"], ["next_state"]),
    ]
    inputs = {"samples": ["rows", SAMPLES], "context": ["rows", CONTEXT], "state": [2, "rows", 128]}
    outputs = {
        "probability": ["rows", 1],
        "next_context": ["rows", CONTEXT],
        "next_state": [2, "rows", 128],
    }
    (rate,) = (value for value in graph.input if value.name == "sr")
    rate = onnx.ValueInfoProto.FromString(rate.SerializeToString())
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    for values, shapes in ((graph.input, inputs), (graph.output, outputs)):
        values.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        )
    graph.input.append(rate)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content
