"""Model descriptions: acl.mdl's functions that read a model's interface."""

from pathlib import Path

import pytest
from runtime.support.graphs import onnx_model
from simulator.support.driving import ok
from simulator.support.models import FLOAT as FLOAT_TYPE
from simulator.support.models import (
    GEAR,
    Loaded,
    compile_to,
    image_om,
    node,
    rows,
    rows_om,
    static_om,
    texts_om,
)

from ascend_simulator.codes import Code, DataType, Format

INVALID = Code.INVALID_PARAM
INT64, FLOAT = int(DataType.ACL_INT64), int(DataType.ACL_FLOAT)
ND = int(Format.ACL_FORMAT_ND)


def dims(name, *values):
    return {"name": name, "dimCount": len(values), "dims": list(values)}


def described(acl, path):
    desc = acl.mdl.create_desc()
    ok(acl.mdl.get_desc_from_file(desc, path))
    return desc


def test_a_model_with_gears_has_one_more_input(acl, tmp_path):
    mdl, desc = acl.mdl, described(acl, texts_om(tmp_path))
    assert (mdl.get_num_inputs(desc), mdl.get_num_outputs(desc)) == (3, 2)
    assert [mdl.get_input_name_by_index(desc, place) for place in range(3)] == ["ids", "mask", GEAR]
    assert mdl.get_input_index_by_name(desc, GEAR) == (2, 0)
    assert mdl.get_input_dims(desc, 2) == (dims(GEAR, 4), 0)
    assert mdl.get_input_size_by_index(desc, 2) == 4 * 8
    assert mdl.get_input_data_type(desc, 2) == INT64
    assert mdl.get_input_format(desc, 2) == ND


def test_sizes_fit_every_gear_if_no_gear_is_largest_everywhere(acl, tmp_path):
    mdl, desc = acl.mdl, described(acl, texts_om(tmp_path, "1,64,1,64;16,2,16,2;1,1,1,1"))
    assert mdl.get_input_size_by_index(desc, 0) == 64 * 8
    assert [mdl.get_output_size_by_index(desc, place) for place in range(2)] == [16 * 8, 64 * 8]
    assert mdl.get_output_dims(desc, 0) == (dims("sum:0:total", 1), 0)


def test_sizes_may_be_more_than_dims_need(machine, tmp_path):
    acl = machine(size_slack=96)
    ok(acl.init())
    desc = described(acl, static_om(tmp_path))
    assert acl.mdl.get_input_size_by_index(desc, 0) == 2 * 4 * 4 + 96
    assert acl.mdl.get_output_size_by_index(desc, 0) == 2 * 3 * 4 + 96


def test_dims_of_inputs_are_open_and_of_outputs_those_of_the_largest_gear(acl, tmp_path):
    mdl, desc = acl.mdl, described(acl, rows_om(tmp_path))
    assert mdl.get_input_dims(desc, 0) == (dims("x", -1, 4), 0)
    assert mdl.get_input_dims_v2(desc, 0) == (dims("x", -1, 4), 0)
    assert mdl.get_output_dims(desc, 0) == (dims("product:0:y", 8, 3), 0)
    desc = described(acl, static_om(tmp_path))
    assert mdl.get_input_dims(desc, 0) == (dims("x", 2, 4), 0)
    assert mdl.get_num_inputs(desc) == 1


def test_types_and_formats(acl, tmp_path):
    mdl = acl.mdl
    desc = described(acl, image_om(tmp_path))
    assert mdl.get_input_data_type(desc, 0) == mdl.get_output_data_type(desc, 0) == FLOAT
    nchw = int(Format.ACL_FORMAT_NCHW)
    assert mdl.get_input_format(desc, 0) == mdl.get_output_format(desc, 0) == nchw
    assert mdl.get_input_format(described(acl, rows_om(tmp_path)), 0) == ND


def test_each_family_returns_only_its_own_gears(acl, tmp_path):
    mdl = acl.mdl
    batch, hw, all_dims, static = (
        described(acl, make(tmp_path)) for make in (rows_om, image_om, texts_om, static_om)
    )
    assert mdl.get_dynamic_batch(batch) == ({"batchCount": 3, "batch": [1, 4, 8]}, 0)
    assert mdl.get_dynamic_hw(hw, -1) == ({"hwCount": 2, "hw": [[2, 3], [4, 4]]}, 0)
    assert mdl.get_input_dynamic_gear_count(all_dims, -1) == (3, 0)
    for desc in (hw, all_dims, static):
        assert mdl.get_dynamic_batch(desc) == ({"batchCount": 0, "batch": []}, 0)
    for desc in (batch, all_dims, static):
        assert mdl.get_dynamic_hw(desc, -1) == ({"hwCount": 0, "hw": []}, 0)
    for desc in (batch, hw, static):
        assert mdl.get_input_dynamic_gear_count(desc, -1) == (0, 0)
        assert mdl.get_input_dynamic_dims(desc, -1, 0) == ([], 0)


def test_gears_of_dims_list_all_inputs_one_after_another(acl, tmp_path):
    desc = described(acl, texts_om(tmp_path))
    expected = [dims("", 1, 4, 1, 4), dims("", 2, 8, 2, 8), dims("", 4, 8, 4, 8)]
    assert acl.mdl.get_input_dynamic_dims(desc, -1, 3) == (expected, 0)
    assert acl.mdl.get_input_dynamic_dims(desc, -1, 4096) == (expected, 0)
    assert acl.mdl.get_input_dynamic_dims(desc, -1, 4097) == (None, INVALID)
    assert acl.mdl.get_input_dynamic_dims(desc, -1, 2) == (None, INVALID)


def test_the_reserved_index_is_minus_one(acl, tmp_path):
    desc = described(acl, texts_om(tmp_path))
    assert acl.mdl.get_dynamic_hw(desc, 0)[1] == 0  # its index is ignored
    assert acl.mdl.get_input_dynamic_gear_count(desc, 0) == (0, INVALID)
    assert acl.mdl.get_input_dynamic_dims(desc, 0, 3) == (None, INVALID)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda mdl, desc: mdl.get_input_dims(desc, 2), ({}, INVALID)),
        (lambda mdl, desc: mdl.get_input_dims_v2(desc, 2), ({}, INVALID)),
        (lambda mdl, desc: mdl.get_output_dims(desc, 1), ({}, INVALID)),
        (lambda mdl, desc: mdl.get_cur_output_dims(desc, 1), ({}, INVALID)),
        (lambda mdl, desc: mdl.get_input_format(desc, 2), -1),
        (lambda mdl, desc: mdl.get_output_data_type(desc, 1), -1),
        (lambda mdl, desc: mdl.get_input_size_by_index(desc, 2), 0),
        (lambda mdl, desc: mdl.get_output_size_by_index(desc, 1), 0),
        (lambda mdl, desc: mdl.get_input_name_by_index(desc, 2), ""),
        (lambda mdl, desc: mdl.get_output_name_by_index(desc, -1), ""),
        (lambda mdl, desc: mdl.get_input_index_by_name(desc, "z"), (0, INVALID)),
        (lambda mdl, desc: mdl.get_output_index_by_name(desc, "y"), (0, INVALID)),
        (lambda mdl, desc: mdl.get_tensor_real_name(desc, "z"), None),
        (lambda mdl, desc: mdl.get_op_attr(desc, "product", "kind"), None),
        (lambda mdl, desc: mdl.get_desc(desc, 77), Code.GE_EXEC_MODEL_ID_INVALID),
    ],
)
def test_unknown_tensors_are_refused_as_each_call_does(acl, tmp_path, call, answer):
    assert call(acl.mdl, described(acl, rows_om(tmp_path))) == answer


def test_an_unknown_model_empties_the_description(acl, tmp_path):
    desc = described(acl, rows_om(tmp_path))
    assert acl.mdl.get_desc(desc, 5) == Code.GE_EXEC_MODEL_ID_INVALID
    assert acl.mdl.get_num_inputs(desc) == 0


def test_current_dims_are_those_set_last_and_before_that_the_largest(acl, tmp_path):
    loaded = Loaded(acl, rows_om(tmp_path))
    other = acl.mdl.create_desc()
    ok(acl.mdl.get_desc(other, loaded.id))
    name = "product:0:y"
    assert acl.mdl.get_cur_output_dims(loaded.desc, 0) == (dims(name, 8, 3), 0)
    ok(loaded.set_batch(4))
    for desc in (loaded.desc, other):
        assert acl.mdl.get_cur_output_dims(desc, 0) == (dims(name, 4, 3), 0)
    assert acl.mdl.get_output_dims(loaded.desc, 0) == (dims(name, 8, 3), 0)


def test_a_model_that_is_unloaded_has_no_current_dims(acl, tmp_path):
    mid = ok(acl.mdl.load_from_file(rows_om(tmp_path)))
    desc = acl.mdl.create_desc()
    ok(acl.mdl.get_desc(desc, mid))
    ok(acl.mdl.unload(mid))
    assert acl.mdl.get_cur_output_dims(desc, 0) == ({}, Code.GE_EXEC_MODEL_ID_INVALID)
    assert acl.mdl.get_num_inputs(desc) == 2


def test_a_model_with_free_shapes_returns_ranges_and_maximum_bytes(acl, tmp_path):
    mdl = acl.mdl
    desc = described(acl, compile_to(tmp_path, rows(), input_shape="x:2~8,4"))
    assert mdl.get_input_dims(desc, 0) == (dims("x", -1, 4), 0)
    ranges = {"rangeCount": 2, "range": [[2, 8], [4, 4]]}
    assert mdl.get_input_dims_range(desc, 0) == (ranges, 0)
    assert mdl.get_input_size_by_index(desc, 0) == 8 * 4 * 4
    assert mdl.get_output_size_by_index(desc, 0) == 8 * 3 * 4
    assert mdl.get_cur_output_dims(desc, 0) == ({}, Code.API_NOT_SUPPORT)
    desc = described(acl, compile_to(tmp_path, rows(), input_shape="x:-1,4"))
    assert mdl.get_input_size_by_index(desc, 0) == 0
    assert mdl.get_output_size_by_index(desc, 0) == 0
    desc = described(acl, static_om(tmp_path))
    assert mdl.get_input_dims_range(desc, 0) == ({"rangeCount": 0, "range": []}, 0)


def test_names_of_127_bytes_are_kept(acl, tmp_path):
    model = rows(2)
    model.graph.input[0].name = model.graph.node[0].input[0] = "x" * 127
    desc = described(acl, compile_to(tmp_path, model))
    assert acl.mdl.get_input_name_by_index(desc, 0) == "x" * 127


def test_long_names_are_replaced_and_lead_back(acl, tmp_path):
    model = rows(2)
    long = "x" * 128
    model.graph.input[0].name = model.graph.node[0].input[0] = long
    mdl, desc = acl.mdl, described(acl, compile_to(tmp_path, model))
    name = mdl.get_input_name_by_index(desc, 0)
    assert name == "acl_modelId_0_input_0"
    assert mdl.get_input_dims(desc, 0)[0]["name"] == name
    assert mdl.get_input_index_by_name(desc, name) == (0, 0)
    assert mdl.get_tensor_real_name(desc, name) == long


def test_a_replaced_name_has_the_number_of_its_model(acl, tmp_path):
    model = rows(2)
    model.graph.output[0].name = model.graph.node[0].output[0] = "y" * 128
    path = compile_to(tmp_path, model)
    ok(acl.mdl.load_from_file(path))
    desc = acl.mdl.create_desc()
    ok(acl.mdl.get_desc(desc, ok(acl.mdl.load_from_file(path))))
    assert acl.mdl.get_output_name_by_index(desc, 0) == "acl_modelId_2_output_0"


def test_more_than_128_gears_are_over_a_limit(machine, tmp_path):
    soc = "Ascend950PR_9599"
    acl = machine(soc=soc)
    ok(acl.init())
    gears = ",".join(map(str, range(1, 130)))
    desc = described(acl, rows_om(tmp_path, gears.removesuffix(",129"), soc_version=soc))
    assert acl.mdl.get_dynamic_batch(desc)[0]["batchCount"] == 128
    desc = described(acl, rows_om(tmp_path, gears, soc_version=soc))
    assert acl.mdl.get_dynamic_batch(desc) == ({}, Code.STORAGE_OVER_LIMIT)


def test_more_gears_of_dims_than_readable_can_be_compiled(machine, tmp_path):
    soc = "Ascend950PR_9599"
    acl = machine(soc=soc)
    ok(acl.init())
    gears = ";".join(f"{n},2,{n},2" for n in range(1, 130))
    desc = described(acl, texts_om(tmp_path, gears, soc_version=soc))
    assert acl.mdl.get_input_dynamic_gear_count(desc, -1) == (0, Code.STORAGE_OVER_LIMIT)


def test_more_than_128_dims_are_over_a_limit(acl, tmp_path):
    names = [f"i{place}" for place in range(65)]
    model = onnx_model(
        [node("Sum", names, ["y"])],
        [(name, FLOAT_TYPE, ["n", 1]) for name in names],
        [("y", FLOAT_TYPE, ["n", 1])],
    )
    shapes = ";".join(f"{name}:{-1 if place == 0 else 1},1" for place, name in enumerate(names))
    path = compile_to(tmp_path, model, input_format="ND", input_shape=shapes, dynamic_dims="1;2")
    desc = described(acl, path)
    assert acl.mdl.get_input_dims(desc, 0)[1] == 0
    assert acl.mdl.get_input_dynamic_dims(desc, -1, 2) == (None, Code.FAILURE)


def test_a_description_is_made_of_memory_too(acl, tmp_path):
    data = Path(rows_om(tmp_path)).read_bytes()
    desc = acl.mdl.create_desc()
    assert acl.mdl.get_desc_from_mem(desc, acl.util.bytes_to_ptr(data), len(data)) == 0
    assert acl.mdl.get_num_inputs(desc) == 2
    assert acl.mdl.get_desc_from_mem(desc, 0, len(data)) == INVALID
    assert acl.mdl.get_num_inputs(desc) == 0


def test_gears_of_dims_are_listed_in_the_order_of_input_shape(acl, tmp_path):
    model = onnx_model(
        [node("Concat", ["a", "b"], ["y"], axis=1)],
        [("a", FLOAT_TYPE, ["n", "s"]), ("b", FLOAT_TYPE, ["n", "t"])],
        [("y", FLOAT_TYPE, ["n", "u"])],
    )
    shape = {"input_format": "ND", "input_shape": "b:-1,-1;a:-1,-1"}
    path = compile_to(tmp_path, model, "turned", **shape, dynamic_dims="2,8,2,3;1,4,1,5")
    loaded = Loaded(acl, path)
    listed = ok(acl.mdl.get_input_dynamic_dims(loaded.desc, -1, 2))
    assert [gear["dims"] for gear in listed] == [[2, 8, 2, 3], [1, 4, 1, 5]]
    assert acl.mdl.get_input_name_by_index(loaded.desc, 0) == "a"
    assert acl.mdl.get_input_size_by_index(loaded.desc, 0) == 4 * 2 * 3
    assert loaded.set_dims(2, 3, 2, 8) == Code.GE_DYNAMIC_BATCH_SIZE_INVALID
    assert loaded.set_dims(2, 8, 2, 3) == 0
