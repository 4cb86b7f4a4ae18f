"""All functions of acl and acl.mdl that models need exist, with the documented call shapes."""

from operator import attrgetter

import pytest

from ascend_simulator.codes import Code

INVALID = Code.INVALID_PARAM

STATUS = {
    "mdl.unload": (9,),
    "mdl.bundle_unload": (9,),
    "mdl.execute": (9, 0, 0),
    "mdl.execute_async": (9, 0, 0, 0),
    "mdl.execute_v2": (9, 0, 0, 0, 0),
    "mdl.set_dynamic_batch_size": (9, 0, 0, 1),
    "mdl.set_dynamic_hw_size": (9, 0, 0, 1, 1),
    "mdl.set_input_dynamic_dims": (9, 0, 0, {"name": "", "dimCount": 1, "dims": [1]}),
    "mdl.set_config_opt": (0, 0, 0),
    "mdl.set_exec_config_opt": (0, 0, 0),
    "mdl.get_desc": (0, 9),
    "mdl.get_desc_from_file": (0, "m.om"),
    "mdl.get_desc_from_mem": (0, 0, 0),
    "mdl.destroy_desc": (0,),
    "mdl.destroy_dataset": (0,),
    "mdl.destroy_config_handle": (0,),
    "mdl.destroy_exec_config_handle": (0,),
    "mdl.destroy_aipp": (0,),
    "mdl.set_input_aipp": (9, 0, 0, 0),
    "mdl.set_aipp_by_input_index": (9, 0, 0, 0),
    "mdl.set_aipp_input_format": (0, 3),
    "mdl.set_aipp_csc_params": (0,) * 17,
    "mdl.set_aipp_rbuv_swap_switch": (0, 0),
    "mdl.set_aipp_ax_swap_switch": (0, 0),
    "mdl.set_aipp_src_image_size": (0, 8, 8),
    "mdl.set_aipp_scf_params": (0,) * 7,
    "mdl.set_aipp_crop_params": (0,) * 7,
    "mdl.set_aipp_padding_params": (0,) * 7,
    "mdl.set_aipp_dtc_pixel_mean": (0,) * 6,
    "mdl.set_aipp_dtc_pixel_min": (0,) * 6,
    "mdl.set_aipp_pixel_var_reci": (0,) * 6,
    "mdl.set_dump": ("acl.json",),  # without init_dump
    "mdl.finalize_dump": (),
    "destroy_data_buffer": (0,),
    "update_data_buffer": (0, 0, 0),
}
VALUE = {
    "mdl.load_from_file": ("m.om",),
    "mdl.load_from_mem": (0, 0),
    "mdl.load_from_file_with_mem": ("m.om", 0, 0, 0, 0),
    "mdl.load_from_mem_with_mem": (0, 0, 0, 0, 0, 0),
    "mdl.load_with_config": (0,),
    "mdl.bundle_load_from_file": ("m.om",),
    "mdl.bundle_load_from_mem": (0, 0),
    "mdl.bundle_get_model_num": (9,),
    "mdl.bundle_get_model_id": (9, 0),
    "mdl.get_input_index_by_name": (0, "x"),
    "mdl.get_output_index_by_name": (0, "x"),
    "mdl.get_input_dynamic_gear_count": (0, -1),
    "mdl.get_aipp_data_size": (0,),
    "get_tensor_desc_dim_v2": (0, 0),
}
PAIR = {"mdl.query_size": ("m.om",), "mdl.query_size_from_mem": (0, 0), "mdl.get_aipp_type": (9, 0)}
NOTHING = {"mdl.get_first_aipp_info": (9, 0)}
ECHO = {"mdl.add_dataset_buffer": (0, 0), "mdl.set_dataset_tensor_desc": (0, 0, 0)}
DICTIONARY = {
    "mdl.get_input_dims": (0, 0),
    "mdl.get_input_dims_v2": (0, 0),
    "mdl.get_output_dims": (0, 0),
    "mdl.get_cur_output_dims": (0, 0),
    "mdl.get_input_dims_range": (0, 0),
    "mdl.get_dynamic_batch": (0,),
    "mdl.get_dynamic_hw": (0, -1),
}
LISTING = {"mdl.get_input_dynamic_dims": (0, -1, 1)}
NUMBER = {
    "mdl.get_num_inputs": (0,),
    "mdl.get_num_outputs": (0,),
    "mdl.get_input_size_by_index": (0, 0),
    "mdl.get_output_size_by_index": (0, 0),
    "mdl.get_dataset_num_buffers": (0,),
    "mdl.get_dataset_buffer": (0, 0),
    "mdl.get_dataset_tensor_desc": (0, 0),
    "get_data_buffer_addr": (0,),
    "get_data_buffer_size": (0,),
    "get_data_buffer_size_v2": (0,),
    "get_tensor_desc_num_dims": (0,),
    "get_tensor_desc_size": (0,),
    "get_tensor_desc_type": (0,),
    "get_tensor_desc_format": (0,),
}
UNDEFINED = {
    "mdl.get_input_format": (0, 0),
    "mdl.get_output_format": (0, 0),
    "mdl.get_input_data_type": (0, 0),
    "mdl.get_output_data_type": (0, 0),
}
TEXT = {"mdl.get_input_name_by_index": (0, 0), "mdl.get_output_name_by_index": (0, 0)}
NONE = {"mdl.get_tensor_real_name": (0, "x"), "mdl.get_op_attr": (0, "x", "y")}
CREATORS = {
    "mdl.create_desc": (),
    "mdl.create_dataset": (),
    "mdl.create_config_handle": (),
    "mdl.create_exec_config_handle": (),
    "mdl.create_aipp": (1,),
    "create_data_buffer": (0, 0),
    "create_tensor_desc": (0, [1], 2),
}
ALL = STATUS | VALUE | PAIR | NOTHING | ECHO | DICTIONARY | LISTING
ALL |= NUMBER | UNDEFINED | TEXT | NONE | CREATORS


def call(acl, name):
    return attrgetter(name)(acl)(*ALL[name])


@pytest.mark.parametrize("name", ALL)
def test_a_call_that_fails_has_the_shape_of_its_group(acl, name):
    answer = call(acl, name)
    *values, code = answer if isinstance(answer, tuple) else (answer, answer)
    if name in STATUS:
        assert isinstance(answer, int)
        assert answer != 0
    elif name in VALUE | ECHO:
        assert values == [0]
        assert code != 0
    elif name in PAIR:
        assert values == [0, 0]
        assert code != 0
    elif name in DICTIONARY:
        assert values == [{"rangeCount": 0, "range": []} if name.endswith("range") else {}]
        assert code == INVALID
    elif name in LISTING:
        assert answer == (None, INVALID)
    elif name in NOTHING:
        assert answer == (None, Code.GE_EXEC_MODEL_ID_INVALID)
    elif name in NUMBER:
        assert answer == 0
    elif name in UNDEFINED:
        assert answer == -1
    elif name in TEXT:
        assert answer == ""
    elif name in NONE:
        assert answer is None
    else:
        assert isinstance(answer, int)
        assert answer > 0


@pytest.mark.parametrize("name", ALL)
def test_arguments_are_positional_and_counted(acl, name):
    if ALL[name]:  # calls without parameters ignore arguments
        with pytest.raises(TypeError):
            attrgetter(name)(acl)(*ALL[name], 1)
    with pytest.raises(TypeError):
        attrgetter(name)(acl)(*ALL[name], extra=1)


def test_acl_mdl_has_these_and_no_others(acl):
    there = {name for name in vars(acl.mdl) if not name.startswith("__")}
    named = {name.removeprefix("mdl.") for name in ALL if name.startswith("mdl.")}
    assert there == named | {"init_dump"}  # which succeeds without arguments: test_dumps.py


@pytest.mark.parametrize("name", [name for name in ALL if name not in CREATORS])
def test_model_calls_before_init_are_violations(machine, name):
    acl = machine(mode="lenient")
    with pytest.warns(UserWarning, match="process.not-initialised"):
        answer = call(acl, name)
    if name.startswith("mdl.execute"):
        assert answer == Code.GE_EXEC_NOT_INIT
    elif name in STATUS:
        assert answer == Code.UNINITIALIZE
