"""A card's dumps: reading their files, and matching them with the layers of a graph."""

import struct

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from runtime.support.graphs import onnx_model

from ascend_simulator.models.dumps import dump_file
from ge_runtime.cli.compare.cut_graphs import CutGraph
from ge_runtime.cli.compare.layers import DumpedLayers, Matches, split_into_names
from ge_runtime.cli.compare.report import Difference
from ge_runtime.cli.dump_files import DumpedOperator, DumpedTensor, read_dump
from ge_runtime.errors import ArtifactFault

FLOAT = onnx.TensorProto.FLOAT
node = onnx.helper.make_node
ND, NC1HWC0, FRACTAL_NZ, NHWC, ODD = 2, 3, 29, 1, 17
X = np.array([[1, -2], [3, 4]], np.float32)


def tensor(array, layout=ND, original="", index=0):
    return DumpedTensor(array.ravel(), array.shape, layout, original, index)


def written(tmp_path, name, *arrays_, kind="Add"):
    path = tmp_path / f"{kind}.{name}.3.1.1614717261785536"
    path.write_bytes(dump_file(name, arrays_[:-1], arrays_[-1:], 1614717261785536))
    return path


# -- files ---------------------------------------------------------------------------------------


@given(
    st.lists(
        arrays.arrays(
            st.sampled_from([np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_]),
            arrays.array_shapes(min_dims=0, min_side=0, max_side=3),
        ),
        max_size=3,
    ),
    st.text(max_size=5),
)
def test_read_dump_files(tmp_path_factory, values, name):
    folder = tmp_path_factory.mktemp("dump")
    (folder / "A.b.1.2.3").write_bytes(dump_file(name, values[:1], values[1:], 3))
    (operator,) = read_dump(folder)
    assert operator.name == name
    found = [*operator.inputs, *operator.outputs]
    assert len(found) == len(values)
    for each, value in zip(found, values, strict=True):
        np.testing.assert_array_equal(each.shaped(value.shape), value)


def test_operators_are_ordered_by_time_and_other_files_are_ignored(tmp_path):
    (tmp_path / "Z.first.9.1.10").write_bytes(dump_file("first", (), (), 10))
    (tmp_path / "A.second.1.1.11").write_bytes(dump_file("second", (), (), 11))
    (tmp_path / "acl_dump.json").write_text("{}")
    assert [each.name for each in read_dump(tmp_path)] == ["first", "second"]


@given(st.integers(0, 60), st.binary(max_size=4))
def test_a_truncated_or_changed_file_is_refused(tmp_path_factory, keep, more):
    folder = tmp_path_factory.mktemp("dump")
    whole = dump_file("n", (X,), (X,), 7)
    path = folder / "A.b.1.2.3"
    path.write_bytes(whole[:keep] + more)
    with pytest.raises(ArtifactFault, match="not a readable dump"):
        read_dump(folder)


def test_a_dump_with_an_original_operator_and_inline_data(tmp_path):
    data = X.tobytes()
    original = b"\x0a\x04relu\x10\x01"  # name, output 1
    shape = b"\x0a\x02\x02\x02"  # dims, packed
    output = b"\x08\x01\x10\x02" + b"\x1a" + bytes([len(shape)]) + shape
    output += b"\x22" + bytes([len(original)]) + original + b"\x2a" + bytes([len(data)]) + data
    message = b"\x1a" + bytes([len(output)]) + output + b"\x32\x05fused"
    (tmp_path / "A.b.1.2.3").write_bytes(struct.pack("<Q", len(message)) + message)
    ((found,),) = [each.outputs for each in read_dump(tmp_path)]
    assert (found.original, found.original_index) == ("relu", 1)
    np.testing.assert_array_equal(found.shaped((2, 2)), X)


def test_card_layouts_are_converted():
    image = np.arange(2 * 5 * 2 * 3, dtype=np.float32).reshape(2, 5, 2, 3)
    padded = np.zeros((2, 8, 2, 3), np.float32)
    padded[:, :5] = image
    five = padded.reshape(2, 2, 4, 2, 3).transpose(0, 1, 3, 4, 2)
    np.testing.assert_array_equal(tensor(five, NC1HWC0).shaped(image.shape), image)
    np.testing.assert_array_equal(
        tensor(image.transpose(0, 2, 3, 1), NHWC).shaped(image.shape), image
    )
    matrix = np.arange(3 * 5, dtype=np.float32).reshape(3, 5)
    tiles = np.zeros((4, 6), np.float32)
    tiles[:3, :5] = matrix
    tiles = tiles.reshape(2, 2, 3, 2).transpose(2, 0, 1, 3)  # n1, m1, m0, n0
    np.testing.assert_array_equal(tensor(tiles, FRACTAL_NZ).shaped((3, 5)), matrix)
    np.testing.assert_array_equal(tensor(X.reshape(1, 1, 2, 2)).shaped((2, 2)), X)
    assert tensor(X, ODD).shaped((4,)) is None
    assert tensor(X).shaped((3,)) is None
    assert DumpedTensor(None, (2, 2), ND).shaped((2, 2)) is None


# -- layers --------------------------------------------------------------------------------------


@pytest.fixture
def graph(tmp_path):
    """x -> project -> (a node without a name) -> activate -> y."""
    model = onnx_model(
        [
            node("MatMul", ["x", "weight"], ["product"], name="project"),
            node("Neg", ["product"], ["negative"]),
            node("Relu", ["negative"], ["y"], name="activate"),
        ],
        [("x", FLOAT, ["n", 2])],
        [("y", FLOAT, ["n", 2])],
        {"weight": np.eye(2, dtype=np.float32)},
    )
    onnx.save(model, tmp_path / "model.onnx")
    return CutGraph(tmp_path / "model.onnx")


def layers(graph, *operators, limit=0.01):
    return DumpedLayers(graph, operators, {"x": X}, limit)


def names(found):
    return [layer.tensor for layer in found]


OFF = Difference(0.0, 1.0, 1.0)


def test_a_fused_operator_matches_the_last_node_in_its_name(graph):
    fused = DumpedOperator("projectNeg_1activate", [], [tensor(np.ones((2, 2), np.float16))])
    copy = DumpedOperator("trans_Cast_0", [tensor(X)], [tensor(X)])
    found = layers(graph, copy, fused)
    assert names(found.measured) == ["y"]
    assert names(found.unmatched) == ["product", "negative"]
    assert found.unmatched_operators == ["trans_Cast_0"]
    first = found.search({"y": OFF})
    assert first.layer.node == "activate"
    assert names(first.unmeasured) == ["product", "negative"]
    assert first.alone is None


def test_a_renamed_operator_matches_the_original_in_the_dump(graph):
    given = DumpedOperator("te_fused", [], [tensor(X, original="project")])
    found = layers(graph, given)
    assert names(found.measured) == ["product"]
    assert not found.unmatched_operators


def test_inputs_of_an_operator_measure_a_layer_without_a_file(graph):
    relu = DumpedOperator("activate", [tensor(-X)], [tensor(np.maximum(-X, 0) + 1)])
    found = layers(graph, relu)
    assert names(found.measured) == ["negative", "y"]
    first = found.search({"y": OFF})
    assert first.layer.node == "activate"
    assert not first.unmeasured
    assert first.alone.relative > 0.01  # on the card's inputs the CPU computes other values


def test_the_first_layer_is_one_that_the_output_depends_on(graph):
    wrong = DumpedOperator("project", [tensor(X), tensor(X)], [tensor(X + 1)])
    found = layers(graph, wrong)
    assert found.search({"y": OFF}).layer.node == "project"
    assert found.search({"y": Difference(1.0, 0.0, 0.0)}) is None


def test_an_output_without_an_operator_is_measured_by_its_result(graph):
    found = layers(graph)
    first = found.search({"y": OFF})
    assert first.layer.tensor == "y"
    assert names(first.unmeasured) == ["product", "negative"]


def test_int32_of_the_card_is_compared_with_int64(tmp_path):
    model = onnx_model(
        [node("Shape", ["x"], ["y"], name="shape")],
        [("x", FLOAT, ["n", 2])],
        [("y", onnx.TensorProto.INT64, [2])],
        {},
    )
    onnx.save(model, tmp_path / "model.onnx")
    given = DumpedOperator("shape", [], [tensor(np.array([2, 2], np.int32))])
    (layer,) = layers(CutGraph(tmp_path / "model.onnx"), given).measured
    assert not layer.difference.relative


def test_split_into_names():
    known = ["conv1", "conv1_relu", "conv", "1", "", "bn"]
    assert split_into_names("conv1conv1_relu", known) in (
        ["conv1", "conv1_relu"],
        ["conv", "1", "conv1_relu"],
    )
    assert split_into_names("conv1bn_x", known) == []
    assert split_into_names("", known) == []


@given(st.lists(st.sampled_from(["a", "ab", "ba", "c"]), min_size=1, max_size=8))
def test_any_concatenation_of_names_is_split(row):
    text = "".join(row)
    assert "".join(split_into_names(text, ["a", "ab", "ba", "c"])) == text


def test_outputs_of_one_node_are_matched_separately():
    split = node("Split", ["x"], ["one", "", "two"], name="split")
    three = [tensor(np.full(2, each, np.float32)) for each in range(3)]
    found = Matches({"split": split}, [DumpedOperator("split", [], three)])
    assert found.outputs == {"one": three[0], "two": three[2]}
