"""Compare contract.md with the simulator and its tests."""

import ast
import re
from functools import cache

import pytest
from simulator.test_record import RECORD, SIMULATOR, TESTS, decorated_shapes, quoted

import ascend_simulator.exit_report
import ascend_simulator.interface.exports  # noqa: F401 - declares every function and rule
from ascend_simulator import RULES
from ascend_simulator.calls import EXPORTED

PAGE = (TESTS / "contract.md").read_text()
NOT_SIMULATED = "*not simulated*: "

RELEASING = {
    "rt.synchronize_stream",
    "rt.synchronize_stream_with_timeout",
    "rt.synchronize_device",
    "rt.synchronize_event",
    "rt.synchronize_event_with_timeout",
    "rt.stream_wait_event",
    "rt.process_report",
    "util.start_thread",
    "util.stop_thread",
}
"""Functions during which the binding releases the GIL."""

GROUPS = {
    "status": """
        init finalize destroy_data_buffer update_data_buffer
        rt.set_device rt.reset_device rt.reset_device_force rt.set_context rt.destroy_context
        rt.destroy_stream rt.set_stream_failure_mode rt.synchronize_stream
        rt.synchronize_stream_with_timeout rt.synchronize_device rt.record_event
        rt.stream_wait_event rt.synchronize_event rt.synchronize_event_with_timeout rt.reset_event
        rt.destroy_event rt.free rt.free_host rt.memcpy rt.memcpy_async rt.memset rt.memset_async
        rt.mem_flush rt.mem_invalidate rt.host_register_v2 rt.host_unregister
        rt.ipc_mem_set_import_pid rt.ipc_mem_close
        rt.set_op_wait_timeout rt.set_op_execute_time_out
        media.dvpp_free media.dvpp_destroy_channel_desc media.dvpp_set_channel_desc_mode
        media.dvpp_create_channel media.dvpp_destroy_channel media.dvpp_destroy_pic_desc
        media.dvpp_set_pic_desc_data media.dvpp_set_pic_desc_size media.dvpp_set_pic_desc_format
        media.dvpp_set_pic_desc_width media.dvpp_set_pic_desc_height
        media.dvpp_set_pic_desc_width_stride media.dvpp_set_pic_desc_height_stride
        media.dvpp_destroy_roi_config media.dvpp_set_resize_config_interpolation
        media.dvpp_destroy_resize_config media.dvpp_jpeg_decode_async media.dvpp_vpc_resize_async
        media.dvpp_vpc_crop_async media.dvpp_vpc_crop_and_paste_async
        media.dvpp_vpc_crop_resize_async media.dvpp_vpc_crop_resize_paste_async
        media.dvpp_vpc_batch_crop_resize_async media.dvpp_vpc_batch_crop_resize_paste_async
        media.dvpp_destroy_batch_pic_desc set_tensor_const
        op.set_model_dir op.load op.execute op.execute_v2 op.cast op.execute_with_handle
        op.set_attr_bool op.set_attr_int op.set_attr_float op.set_attr_string
        prof.init prof.start prof.stop prof.finalize prof.destroy_config
        mdl.init_dump mdl.set_dump mdl.finalize_dump
        rt.subscribe_report rt.unsubscribe_report rt.launch_callback rt.process_report
        mdl.unload mdl.bundle_unload mdl.execute mdl.execute_v2 mdl.execute_async
        mdl.set_dynamic_batch_size mdl.set_dynamic_hw_size mdl.set_input_dynamic_dims
        mdl.set_config_opt mdl.set_exec_config_opt mdl.destroy_config_handle
        mdl.destroy_exec_config_handle mdl.get_desc mdl.get_desc_from_file mdl.get_desc_from_mem
        mdl.destroy_desc mdl.destroy_dataset util.stop_thread
        mdl.destroy_aipp mdl.set_input_aipp mdl.set_aipp_by_input_index mdl.set_aipp_input_format
        mdl.set_aipp_csc_params mdl.set_aipp_rbuv_swap_switch mdl.set_aipp_ax_swap_switch
        mdl.set_aipp_src_image_size mdl.set_aipp_scf_params mdl.set_aipp_crop_params
        mdl.set_aipp_padding_params mdl.set_aipp_dtc_pixel_mean mdl.set_aipp_dtc_pixel_min
        mdl.set_aipp_pixel_var_reci
    """,
    "value": """
        finalize_reference get_tensor_desc_dim_v2 rt.stream_query
        media.dvpp_malloc media.dvpp_jpeg_predict_dec_size
        rt.get_device_count rt.get_device rt.get_run_mode rt.create_context rt.get_context
        rt.query_device_status
        rt.create_stream rt.create_stream_with_config rt.create_event rt.create_event_with_flag
        rt.create_event_ex_with_flag rt.query_event rt.query_event_status rt.event_elapsed_time
        rt.event_get_timestamp rt.malloc rt.malloc_align32 rt.malloc_cached rt.malloc_host
        rt.host_register rt.ipc_mem_get_export_key rt.ipc_mem_import_by_key rt.device_get_bare_tgid
        mdl.load_from_file mdl.load_from_mem mdl.load_from_file_with_mem mdl.load_from_mem_with_mem
        mdl.load_with_config mdl.bundle_load_from_file mdl.bundle_load_from_mem
        mdl.bundle_get_model_num op.create_handle op.create_handle_for_cast
        mdl.bundle_get_model_id mdl.get_input_index_by_name mdl.get_output_index_by_name
        mdl.get_input_dynamic_gear_count util.start_thread
        mdl.get_first_aipp_info mdl.get_aipp_data_size
    """,
    "triple": "get_version media.dvpp_jpeg_get_image_info",
    "pair": """
        mdl.query_size mdl.query_size_from_mem rt.get_mem_info rt.device_get_stream_priority_range
        mdl.get_aipp_type
    """,
    "echo": "mdl.add_dataset_buffer mdl.set_dataset_tensor_desc",
    "batch": "media.dvpp_vpc_batch_crop_async media.dvpp_vpc_batch_crop_and_paste_async",
    "dictionary": """
        rt.get_device_utilization_rate
        mdl.get_input_dims mdl.get_input_dims_v2 mdl.get_output_dims mdl.get_cur_output_dims
        mdl.get_input_dims_range mdl.get_dynamic_batch mdl.get_dynamic_hw rt.pointer_get_attributes
    """,
    "listing": "mdl.get_input_dynamic_dims",
    "bare": """
        prof.create_config op.create_attr op.destroy_attr op.destroy_handle
        media.dvpp_create_batch_pic_desc media.dvpp_get_pic_desc
        app_log float16_to_float float_to_float16
        media.dvpp_create_channel_desc media.dvpp_create_pic_desc media.dvpp_create_roi_config
        media.dvpp_create_resize_config media.dvpp_get_pic_desc_data media.dvpp_get_pic_desc_size
        media.dvpp_get_pic_desc_format media.dvpp_get_pic_desc_width
        media.dvpp_get_pic_desc_height media.dvpp_get_pic_desc_width_stride
        media.dvpp_get_pic_desc_height_stride media.dvpp_get_pic_desc_ret_code
        get_soc_name get_recent_err_msg data_type_size create_data_buffer get_data_buffer_addr
        get_data_buffer_size get_data_buffer_size_v2 create_tensor_desc get_tensor_desc_type
        get_tensor_desc_format get_tensor_desc_size get_tensor_desc_num_dims destroy_tensor_desc
        mdl.create_desc mdl.create_dataset mdl.create_config_handle mdl.create_exec_config_handle
        mdl.get_num_inputs mdl.get_num_outputs mdl.get_input_size_by_index
        mdl.get_output_size_by_index mdl.get_input_format mdl.get_output_format
        mdl.get_input_data_type mdl.get_output_data_type mdl.get_input_name_by_index
        mdl.get_output_name_by_index mdl.get_dataset_num_buffers mdl.get_dataset_buffer
        mdl.get_dataset_tensor_desc mdl.get_tensor_real_name mdl.get_op_attr
        util.numpy_to_ptr util.numpy_contiguous_to_ptr util.bytes_to_ptr util.ptr_to_bytes
        util.ptr_to_numpy mdl.create_aipp
    """,
}
"""Shape of the answer -> functions, as the reference of pyACL has them."""


def tables():
    """Return the cells of each table below a heading, including heading and header, by rows."""
    found = []
    for section in PAGE.split("\n## ")[1:]:
        heading = section.splitlines()[0]
        for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
            lines = [line.removeprefix("|").removesuffix("|") for line in table.splitlines()]
            cells = [[cell.strip() for cell in line.split("|")] for line in lines]
            found.append((heading, cells[0], cells[2:]))
    return found


TABLES = tables()
FUNCTIONS = [row for _, header, rows in TABLES if header == ["Functions", "Tests"] for row in rows]
STATEMENTS = [
    pytest.param(row, id=f"{heading}: {row[0]}")
    for heading, header, rows in TABLES
    if header[0] == "Statement"
    for row in rows
]


@cache
def scanned():
    """Return the functions of the simulator whose decorator declares that they release the GIL."""
    found = set()
    for file in SIMULATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            for call in getattr(node, "decorator_list", ()):
                if isinstance(call, ast.Call) and any(
                    word.arg == "releases_gil" for word in call.keywords
                ):
                    found.add(call.args[0].value)
    return found


@cache
def source(file):
    return (TESTS / file).read_text()


def test_each_function_is_on_one_of_two_pages():
    named = [name for row in FUNCTIONS for name in quoted(row[0])]
    assert len(named) == len(set(named))
    assert set(named) == set(EXPORTED) - set(RECORD)


def test_the_page_counts_its_rows():
    counted = [
        int(number) for number in re.findall(r"\d+", PAGE.split("\nOf ")[1].split("\n\n")[0])
    ]
    here = sum(len(quoted(row[0])) for row in FUNCTIONS)
    media = sum(name.startswith("media.") for name in EXPORTED)
    left_out = sum(row.values[0][1].startswith(NOT_SIMULATED) for row in STATEMENTS)
    all_of_them = [len(EXPORTED), len(RECORD), here, media, len(STATEMENTS)]
    assert counted == [*all_of_them, len(STATEMENTS) - left_out, left_out]


def test_functions_listed_as_missing_do_not_exist():
    ((rows),) = [rows for _, header, rows in TABLES if header == ["Functions", "Why"]]
    names = {name for row in rows for name in quoted(row[0])}
    assert names
    assert not names & ({name.partition(".")[0] for name in EXPORTED} | set(EXPORTED))


@pytest.mark.parametrize("row", FUNCTIONS, ids=lambda row: row[0])
def test_the_tests_of_functions_call_them(row):
    tests = re.findall(r"`(test_\w+\.py)::test_\w+`", row[1])
    assert tests
    for name in quoted(row[0]):
        short = name.rpartition(".")[2]
        side = re.sub("input|output", "{side}", short)
        support = "".join(file.read_text() for file in (TESTS / "support").glob("*.py"))
        for file in tests:
            assert re.search(rf"\b{short}\b", source(file) + support) or side in source(file), name


@pytest.mark.parametrize("row", STATEMENTS)
def test_each_statement_names_a_test_or_rule_or_a_reason(row):
    statement, tests, rules = row
    assert statement
    if tests.startswith(NOT_SIMULATED):
        assert len(tests) > len(NOT_SIMULATED)
        assert not rules
    else:
        assert quoted(tests) or quoted(rules)
        assert all(re.fullmatch(r"test_\w+\.py::test_\w+", test) for test in quoted(tests))
    assert set(quoted(rules)) <= set(RULES)


def test_every_test_named_on_the_page_exists():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)
    assert len(named) == PAGE.count(".py::")
    for file, test in named:
        assert f"def {test}(" in source(file), f"{file}::{test}"


def test_every_rule_is_on_the_page_or_a_caution():
    named = {rule for row in STATEMENTS for rule in quoted(row.values[0][-1]) if rule in RULES}
    assert set(RULES) == named


@pytest.mark.brute_force
def test_every_function_answers_in_the_shape_of_its_group():
    groups = {name: group for group, names in GROUPS.items() for name in names.split()}
    assert {name: decorated_shapes()[name] for name in EXPORTED} == groups


@pytest.mark.brute_force
def test_only_these_functions_release_pythons_lock():
    assert scanned() == RELEASING
