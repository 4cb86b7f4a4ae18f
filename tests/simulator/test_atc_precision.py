"""FP16, atc's default: answers have half precision."""

import numpy as np
import onnx
import pytest
from runtime.support.graphs import onnx_model
from simulator.support.models import FLOAT, INT64, MATRIX, Loaded, compile_to, node, rows

from ascend_simulator.codes import DataType
from ascend_simulator.models import om


def played(acl, folder, model, *arrays, **flags):
    """Return the outputs of a model of fixed shapes."""
    shapes = {
        value.name: ",".join(map(str, array.shape))
        for value, array in zip(model.graph.input, arrays, strict=True)
    }
    text = ";".join(f"{name}:{dims}" for name, dims in shapes.items())
    loaded = Loaded(acl, compile_to(folder, model, input_shape=text, **flags))
    for place, array in enumerate(arrays):
        loaded.write(place, array)
    assert loaded.execute() == 0, acl.get_recent_err_msg()
    return [loaded.read(place) for place in range(len(model.graph.output))]


def through(*nodes, constants=None):
    """x [n] to y [n]."""
    return onnx_model(list(nodes), [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])], constants or {})


def test_fp16_is_the_default(tmp_path):
    path = compile_to(tmp_path, rows(2), precision_mode_v2="")
    assert om.read(path).manifest.precision == "fp16"


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ({"precision_mode": "force_fp16"}, "fp16"),
        ({"precision_mode": "must_keep_origin_dtype"}, "origin"),
    ],
)
def test_the_older_flag_means_the_same(tmp_path, flags, precision):
    path = compile_to(tmp_path, rows(2), precision_mode_v2="", **flags)
    assert om.read(path).manifest.precision == precision


def test_every_operator_s_result_is_rounded(acl, tmp_path):
    model = through(
        node("Add", ["x", "large"], ["sum"]),
        node("Sub", ["sum", "large"], ["y"]),
        constants={"large": np.float32(2048)},
    )
    x = np.float32([0.3, 1.3, 3, 65000, 70000])
    (found,) = played(acl, tmp_path, model, x, precision_mode_v2="fp16")
    with np.errstate(over="ignore"):
        expected = (x.astype(np.float16) + np.float16(2048)) - np.float16(2048)
    assert found.tolist() == expected.astype(np.float32).tolist()
    assert found[0] == 0
    assert np.isinf(found[4])
    (exact,) = played(acl, tmp_path, model, x, precision_mode_v2="origin")
    assert exact.tolist() == ((x + np.float32(2048)) - np.float32(2048)).tolist()


def test_weights_are_rounded_and_sums_inside_an_operator_are_not(acl, tmp_path):
    matrix = (MATRIX + np.float32(0.0001)).astype(np.float32)
    model = onnx_model(
        [node("MatMul", ["x", "matrix"], ["y"])],
        [("x", FLOAT, ["n", 4])],
        [("y", FLOAT, ["n", 3])],
        {"matrix": matrix},
    )
    x = np.float32([[1.0001, 2, 3, 4]])
    (found,) = played(acl, tmp_path, model, x, precision_mode_v2="fp16")
    exact = x.astype(np.float16).astype(np.float32) @ matrix.astype(np.float16).astype(np.float32)
    assert found.tolist() == exact.astype(np.float16).astype(np.float32).tolist()


@pytest.mark.parametrize("operator", ["Identity", "Exp"])
def test_fp32_outputs_have_half_precision_values(acl, tmp_path, operator):
    x = np.linspace(0.1, 3, 50, dtype=np.float32)
    model = through(node(operator, ["x"], ["y"]))
    (found,) = played(acl, tmp_path, model, x, precision_mode_v2="fp16")
    assert found.dtype == np.float32
    assert found.tolist() == found.astype(np.float16).astype(np.float32).tolist()
    (exact,) = played(acl, tmp_path, model, x)
    np.testing.assert_allclose(found, exact, rtol=2e-3)
    assert found.tolist() != exact.tolist()


def test_integers_stay_exact(acl, tmp_path):
    model = onnx_model(
        [node("Add", ["x", "one"], ["y"])],
        [("x", INT64, ["n"])],
        [("y", INT64, ["n"])],
        {"one": np.int64(1)},
    )
    x = np.array([2049, 1 << 40])
    (found,) = played(acl, tmp_path, model, x, precision_mode_v2="fp16")
    assert found.tolist() == [2050, (1 << 40) + 1]


def test_scales_of_a_resize_are_not_rounded(acl, tmp_path):
    model = onnx_model(
        [node("Resize", ["x", "", "scales"], ["y"], mode="nearest")],
        [("x", FLOAT, [1, 1, 3, 3])],
        [("y", FLOAT, [1, 1, 10, 10])],
        {"scales": np.float32([1, 1, 3.3334, 3.3334])},
    )
    x = np.ones((1, 1, 3, 3), np.float32)
    (found,) = played(acl, tmp_path, model, x, precision_mode_v2="fp16")
    assert found.shape == (1, 1, 10, 10)


def test_inputs_and_outputs_may_be_fp16(acl, tmp_path):
    path = compile_to(
        tmp_path,
        rows(),
        input_shape="x:2,4",
        precision_mode_v2="fp16",
        input_fp16_nodes="x",
        output_type="FP16",
    )
    loaded = Loaded(acl, path)
    assert acl.mdl.get_input_data_type(loaded.desc, 0) == DataType.ACL_FLOAT16
    assert acl.mdl.get_output_data_type(loaded.desc, 0) == DataType.ACL_FLOAT16
    assert (loaded.inputs.sizes, loaded.outputs.sizes) == ([16], [12])
    x = np.arange(8, dtype=np.float16).reshape(2, 4)
    loaded.write(0, x)
    assert loaded.execute() == 0
    expected = (x.astype(np.float32) @ MATRIX).astype(np.float16)
    assert loaded.read(0).tolist() == expected.tolist()


def test_models_with_free_shapes_are_rounded_too(acl, tmp_path):
    path = compile_to(tmp_path, rows(), input_shape="x:-1,4", precision_mode_v2="fp16")
    found = om.read(path)
    assert found.manifest.family == "dynamic"
    names = {each.op_type for each in onnx.load_from_string(found.graph).graph.node}
    assert names == {"MatMul", "Cast"}
    assert acl.mdl.load_from_file(path)[1] == 0


def test_inputs_that_are_constants_as_well_are_rounded(acl, tmp_path):
    model = rows(2)
    matrix = onnx.helper.make_tensor_value_info("matrix", FLOAT, [4, 3])
    model.graph.input.append(matrix)  # as before IR version 4
    x = np.ones((2, 4), np.float32)
    loaded = Loaded(acl, compile_to(tmp_path, model, input_shape="x:2,4", precision_mode_v2="fp16"))
    assert acl.mdl.get_num_inputs(loaded.desc) == 1
    loaded.write(0, x)
    assert loaded.execute() == 0
    assert loaded.read(0).tolist() == (x @ MATRIX).tolist()


def test_fp16_weights_take_half(tmp_path):
    model = onnx_model(
        [node("MatMul", ["x", "matrix"], ["y"])],
        [("x", FLOAT, ["n", 256])],
        [("y", FLOAT, ["n", 256])],
        {"matrix": np.ones((256, 256), np.float32)},
    )
    sizes = {
        precision: om.read(
            compile_to(tmp_path, model, input_shape="x:2,256", precision_mode_v2=precision)
        ).manifest
        for precision in ("origin", "fp16")
    }
    assert sizes["origin"].weight_bytes - 2 * sizes["fp16"].weight_bytes < 512
    assert 256 * 256 * 2 <= sizes["fp16"].weight_bytes <= 256 * 256 * 2 + 1024


def test_origin_keeps_the_graph_as_it_was(tmp_path):
    model = rows(2)
    found = om.read(compile_to(tmp_path, model))
    assert onnx.load_from_string(found.graph) == model
