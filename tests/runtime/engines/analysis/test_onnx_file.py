import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from runtime.support.graphs import ENCODER, PIXELS, onnx_model, write

from ge_runtime.engines.analysis.onnx_file import OnnxFile, nbytes, read_signature
from ge_runtime.engines.base import GraphTensor
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import DType

LARGE = np.arange(1000, dtype=np.float32).reshape(10, 100)
SMALL = np.arange(4, dtype=np.int64)


def read(tmp_path, model, **options):
    path = tmp_path / "model.onnx"
    onnx.save(model, path, **options)
    file = OnnxFile.read(path)
    return onnx.ModelProto.FromString(file.model), file.weights_bytes


def bare(array, name=None):
    """The tensor without its elements."""
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    return TensorProto(name=name, dims=array.shape, data_type=dtype)


def adding(constants, *nodes):
    """A model that adds a constant "large" to its input."""
    return onnx_model(
        [*nodes, helper.make_node("Add", ["x", "large"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 100])],
        [("y", TensorProto.FLOAT, ["n", 100])],
        constants,
    )


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
def test_large_tensors_keep_name_type_and_dims(tmp_path, typed):
    model = adding({"small": SMALL})
    large = numpy_helper.from_array(LARGE, "large")
    if typed:
        large = helper.make_tensor("large", TensorProto.FLOAT, LARGE.shape, LARGE.ravel())
    model.graph.initializer.append(large)
    found, weights_bytes = read(tmp_path, model)
    model.graph.initializer[1].CopyFrom(bare(LARGE, "large"))
    assert found == model
    assert weights_bytes == LARGE.nbytes + SMALL.nbytes


def test_tensors_inside_branches_are_weights_too(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Identity", ["inner"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, LARGE.shape)],
        [numpy_helper.from_array(LARGE, "inner")],
    )
    condition = helper.make_node("If", ["c"], ["large"], then_branch=branch, else_branch=branch)
    model = adding({}, condition)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    found, weights_bytes = read(tmp_path, model)
    for attribute in found.graph.node[0].attribute:
        assert attribute.g.initializer[0] == bare(LARGE, "inner")
    assert weights_bytes == 2 * LARGE.nbytes


def test_sparse_weights_count_with_their_indices(tmp_path):
    model = adding({})
    values, indices = numpy_helper.from_array(LARGE.ravel(), "large"), np.arange(1000)
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [10, 400])
    model.graph.sparse_initializer.append(sparse)
    found, weights_bytes = read(tmp_path, model)
    assert found.graph.sparse_initializer[0].values == bare(LARGE.ravel(), "large")
    assert weights_bytes == LARGE.nbytes + indices.nbytes


def test_weights_in_external_files_are_counted_and_not_needed(tmp_path):
    model = adding({"small": SMALL, "large": LARGE})
    options = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    path = tmp_path / "model.onnx"
    onnx.save(model, path, **options)
    (tmp_path / "weights").unlink()
    file = OnnxFile.read(path)
    found = onnx.ModelProto.FromString(file.model)
    assert list(found.graph.initializer) == [bare(SMALL, "small"), bare(LARGE, "large")]
    assert file.weights_bytes == LARGE.nbytes + SMALL.nbytes
    assert file.elsewhere == {"weights"}


def test_dims_may_be_packed_or_not(tmp_path):
    """Writers of protobuf may do either; both say [10, 100]."""
    name, raw = b"\x42\x05large", LARGE.tobytes()
    data = b"\x4a" + bytes([len(raw) & 0x7F | 0x80, len(raw) >> 7]) + raw
    for dims in (b"\x0a\x02\x0a\x64", b"\x08\x0a\x08\x64"):
        tensor = dims + b"\x10\x01" + name + data
        graph = b"\x2a" + bytes([len(tensor) & 0x7F | 0x80, len(tensor) >> 7]) + tensor
        model = b"\x3a" + bytes([len(graph) & 0x7F | 0x80, len(graph) >> 7]) + graph
        path = tmp_path / "model.onnx"
        path.write_bytes(model)
        file = OnnxFile.read(path)
        found = onnx.ModelProto.FromString(file.model)
        assert found.graph.initializer[0] == bare(LARGE, "large")
        assert file.weights_bytes == LARGE.nbytes


@pytest.mark.parametrize("name", sorted(TensorProto.DataType.keys()))
def test_every_type_of_onnx_has_the_bytes_that_onnx_gives_it(name):
    number = TensorProto.DataType.Value(name)
    if name in ("UNDEFINED", "STRING"):
        assert nbytes(number, (3, 5)) is None
        return
    elements = np.zeros(15, helper.tensor_dtype_to_np_dtype(number))
    packed = helper.make_tensor("t", number, [3, 5], elements)
    raw = numpy_helper.from_array(numpy_helper.to_array(packed)).raw_data
    assert nbytes(number, (3, 5)) == len(raw)
    assert nbytes(number, ()) == math.ceil(nbytes(number, (8,)) / 8)


# -- declared inputs and outputs ------------------------------------------------------------------


def described(tensors):
    return [(each.name, each.dtype, each.dims, each.symbols) for each in tensors]


@pytest.mark.parametrize("graph", [ENCODER, PIXELS], ids=lambda graph: graph.name)
def test_declared_tensors_are_those_of_onnxruntime(tmp_path, graph):
    path = write(graph, "onnxruntime", tmp_path)
    engine = OnnxEngine.open(path, threads=1)
    found, expected = read_signature(path), engine.signature
    engine.close()
    assert described(found.inputs) == described(expected.inputs)
    assert described(found.outputs) == described(expected.outputs)


def declared(tmp_path, *inputs):
    node = helper.make_node("NPUFastGelu", ["x"], ["y"], domain="npu")
    model = onnx_model([node], [], [("y", TensorProto.FLOAT, ["n"])])
    model.graph.input.extend(inputs)
    onnx.save(model, path := tmp_path / "model.onnx")
    return path, model


def test_sizes_are_fixed_named_or_unknown(tmp_path):
    path, model = declared(
        tmp_path, helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, "n", None, -1])
    )
    weight = helper.make_tensor_value_info("w", TensorProto.FLOAT, [1])
    unknown = helper.make_tensor_value_info("rank", TensorProto.INT32, None)
    scalar = helper.make_tensor_value_info("scalar", TensorProto.BFLOAT16, [])
    model.graph.input.extend([weight, unknown, scalar])  # files of old versions list weights
    model.graph.initializer.append(numpy_helper.from_array(LARGE[0, :1], "w"))
    onnx.save(model, path)
    signature = read_signature(path)
    assert described(signature.inputs) == [
        ("x", DType.FP16, (2, None, None, None), (None, "n", None, None)),
        ("rank", DType.INT32, None, ()),
        ("scalar", DType.BF16, (), ()),
    ]
    assert signature.outputs == (GraphTensor("y", DType.FP32, (None,)),)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (helper.make_tensor_value_info("x", TensorProto.COMPLEX64, [1]), "'x' of type 14"),
        (helper.make_tensor_sequence_value_info("x", 1, [1]), "'x' of no tensor type"),
    ],
)
def test_types_that_triton_lacks_are_refused(tmp_path, value, found):
    with pytest.raises(ArtifactFault, match=f"{found}, expected a tensor of a type that Triton"):
        read_signature(declared(tmp_path, value)[0])


@pytest.mark.parametrize("content", [b"", b"\x08\x07", b"no graph", b"\x3a\xff"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ArtifactFault, match=r"model\.onnx: cannot be read as an ONNX graph: "):
        read_signature(tmp_path / "model.onnx")
