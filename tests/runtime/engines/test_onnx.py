import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from runtime.engines.conformance_engine import EngineConformance
from runtime.support.graphs import onnx_model

from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.engines.onnx_session import advised, open_session
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import DType


class TestOnnxEngine(EngineConformance):
    @pytest.fixture
    def opened(self, version_dir):
        return lambda graph, threads=1: OnnxEngine.open(version_dir(graph) / "model.onnx", threads)


def no_graph(folder):
    (folder / "model.onnx").write_bytes(b"no graph")


def foreign_operator(folder):
    model = onnx_model(
        [helper.make_node("Magic", ["x"], ["y"], domain="elsewhere")],
        [("x", TensorProto.FLOAT, ["batch"])],
        [("y", TensorProto.FLOAT, ["batch"])],
    )
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    onnx.save(model, folder / "model.onnx")


def missing_weights(folder):
    model = onnx_model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ["batch"])],
        [("y", TensorProto.FLOAT, ["batch"])],
        {"w": np.ones(1, np.float32)},
    )
    external = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(model, folder / "model.onnx", **external)
    (folder / "w.bin").unlink()


@pytest.mark.parametrize(
    ("write", "remedy"),
    [
        (no_graph, "; it is no ONNX graph, or incomplete: export or copy it again"),
        (foreign_operator, "; export the graph with standard operators"),
        (missing_weights, "; copy the graph's files of weights to its folder"),
    ],
)
def test_errors_have_a_remedy(write, remedy, tmp_path):
    write(tmp_path)
    with pytest.raises(ArtifactFault) as raised:
        OnnxEngine.open(tmp_path / "model.onnx", 1)
    assert str(raised.value).endswith(remedy)


def test_a_lack_of_memory_has_a_remedy():
    error = "Failed to allocate memory for requested buffer of size 32212254720."
    remedy = "it needs more memory than is free: use a larger machine or a smaller graph"
    assert advised(error) == f"{error[:-1]}; {remedy}"
    assert advised("Invalid rank for input.") == "Invalid rank for input."


def test_type_that_triton_lacks_is_a_fault(tmp_path):
    path = tmp_path / "model.onnx"
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    model = onnx_model(
        [helper.make_node("SequenceConstruct", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["batch"])],
        [],
    )
    model.graph.output.append(sequence)
    onnx.save(model, path)
    with pytest.raises(ArtifactFault, match=r"found 'y' of type seq\(tensor\(float\)\), expected"):
        OnnxEngine.open(path, 1)


def test_a_rank_that_the_graph_does_not_declare_is_unknown(tmp_path):
    path = tmp_path / "model.onnx"
    model = onnx_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", TensorProto.FLOAT, ["n"]), ("shape", TensorProto.INT64, ["rank"])],
        [("y", TensorProto.FLOAT, None)],
    )
    onnx.save(model, path)
    engine = OnnxEngine.open(path, 1)
    (output,) = engine.signature.outputs
    assert (output.dims, str(output)) == (None, "FP32[...]")
    inputs = {"x": np.arange(6, dtype=np.float32), "shape": np.array([2, 3])}
    assert engine.run(inputs, {"y": None})["y"].shape == (2, 3)


def test_strings_and_bf16_are_named_as_what_they_are(tmp_path):
    path = tmp_path / "model.onnx"
    names = {"s": TensorProto.STRING, "b": TensorProto.BFLOAT16}
    model = onnx_model(
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in names],
        [(name, element, ["batch"]) for name, element in names.items()],
        [(f"{name}_out", element, ["batch"]) for name, element in names.items()],
    )
    onnx.save(model, path)
    signature = OnnxEngine.open(path, 1).signature
    assert [tensor.dtype for tensor in signature.inputs] == [DType.BYTES, DType.BF16]


def test_slow_optimizations_are_disabled_on_the_cpu_only(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda *_, **given: seen.append(given["disabled_optimizers"]),
    )
    for providers in (["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]):
        open_session(tmp_path / "model.onnx", 1, providers)
    assert seen == [("SkipLayerNormFusion",), None]
