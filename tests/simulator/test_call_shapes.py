"""The call shapes of `acl`: conversion of arguments and form of results."""

from operator import attrgetter

import numpy as np
import pytest
from simulator.support.driving import ok

from ascend_simulator.calls import EXPORTED, I32, STR, U32, U64

TOP = """
    init finalize finalize_reference get_soc_name get_recent_err_msg data_type_size
    get_version app_log float16_to_float float_to_float16
"""
RT = """
    get_device_count set_device get_device reset_device reset_device_force get_run_mode
    create_context set_context get_context destroy_context
    create_stream create_stream_with_config destroy_stream set_stream_failure_mode
    synchronize_stream synchronize_stream_with_timeout synchronize_device
    device_get_stream_priority_range
    create_event create_event_with_flag create_event_ex_with_flag record_event stream_wait_event
    synchronize_event synchronize_event_with_timeout query_event query_event_status
    event_elapsed_time event_get_timestamp reset_event destroy_event
    malloc malloc_align32 malloc_cached mem_flush mem_invalidate free malloc_host free_host
    memcpy memcpy_async memset memset_async get_mem_info
    host_register host_register_v2 host_unregister pointer_get_attributes
    device_get_bare_tgid ipc_mem_get_export_key ipc_mem_set_import_pid ipc_mem_import_by_key
    ipc_mem_close
    stream_query set_op_wait_timeout set_op_execute_time_out
    get_device_utilization_rate query_device_status
    subscribe_report unsubscribe_report launch_callback process_report
"""
UTIL = """
    numpy_to_ptr numpy_contiguous_to_ptr bytes_to_ptr ptr_to_bytes ptr_to_numpy
    start_thread stop_thread
"""
OURS = [
    *TOP.split(),
    *(f"rt.{name}" for name in RT.split()),
    *(f"util.{name}" for name in UTIL.split()),
]
TAKES_NOTHING = {
    *("finalize", "finalize_reference", "get_soc_name", "get_recent_err_msg", "get_version"),
    *("rt.get_device_count", "rt.get_device", "rt.get_run_mode", "rt.get_context"),
    *("rt.create_stream", "rt.create_event", "rt.synchronize_device"),
    *("rt.device_get_stream_priority_range", "rt.device_get_bare_tgid"),
}


def function(acl, name):
    return attrgetter(name)(acl)


def test_the_module_has_the_functions_of_the_documents_and_no_others_in_these_namespaces(machine):
    acl = machine()
    assert set(OURS) <= set(EXPORTED)
    for namespace, names in (("rt", RT), ("util", UTIL)):
        module = function(acl, namespace)
        assert {name for name in vars(module) if not name.startswith("__")} == set(names.split())


@pytest.mark.parametrize("name", OURS)
def test_arguments_are_positional_only_and_counted(acl, name):
    with pytest.raises(TypeError):
        function(acl, name)(nothing=1)
    if name not in TAKES_NOTHING:
        with pytest.raises(TypeError, match=f"acl.{name}: found 9 argument"):
            function(acl, name)(*range(9))
    assert function(acl, name).__name__ == name.rpartition(".")[2]
    assert function(acl, name).__doc__


def test_calls_without_parameters_ignore_arguments(acl):
    assert acl.rt.get_device(3, "x") == acl.rt.get_device()
    with pytest.raises(TypeError):
        acl.rt.get_device(nothing=1)
    assert acl.rt.synchronize_device(None) == 0


# The result of each shape: (name, arguments, result); `int` stands for any int but 0.
ANSWERS = [
    # success
    ("rt.set_device", (0,), 0),
    ("rt.get_device", (), (0, 0)),
    ("rt.get_device_count", (), (1, 0)),
    ("rt.get_run_mode", (), (1, 0)),
    ("rt.create_stream", (), (int, 0)),
    ("rt.create_stream_with_config", (0, 0x3), (int, 0)),
    ("rt.create_event", (), (int, 0)),
    ("rt.create_event_with_flag", (0x9,), (int, 0)),
    ("rt.create_event_ex_with_flag", (0x9,), (int, 0)),
    ("rt.get_context", (), (int, 0)),
    ("rt.malloc", (64, 0), (int, 0)),
    ("rt.malloc_align32", (64, 0), (int, 0)),
    ("rt.malloc_cached", (64, 0), (int, 0)),
    ("rt.malloc_host", (64,), (int, 0)),
    ("rt.device_get_stream_priority_range", (), (7, 0, 0)),
    ("rt.get_mem_info", (1,), (int, int, 0)),
    ("rt.synchronize_device", (), 0),
    ("data_type_size", (0,), 4),
    ("data_type_size", (27,), 2),
    ("data_type_size", (99,), 8),
    ("get_soc_name", (), "AscendSimulator"),
    ("get_recent_err_msg", (), None),
    # refusal
    ("rt.free", (0,), 100000),
    ("rt.malloc", (0, 0), (0, 100000)),
    ("rt.malloc_host", (0,), (0, 100000)),
    ("rt.create_context", (5,), (0, 107001)),
    ("rt.get_mem_info", (12,), (0, 0, 107016)),
    ("rt.get_mem_info", (-1,), (0, 0, 107016)),
    ("rt.event_elapsed_time", (0, 0), (0.0, 100000)),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), ANSWERS)
def test_the_return_code_is_last_and_nothing_is_raised(acl, name, arguments, expected):
    answer = function(acl, name)(*arguments)
    if not isinstance(expected, tuple):
        assert (answer, type(answer)) == (expected, type(expected))
        return
    assert isinstance(answer, tuple)
    assert len(answer) == len(expected)
    for found, wanted in zip(answer, expected, strict=True):
        if wanted is int:
            assert type(found) is int
            assert found > 0
        else:
            assert (found, type(found)) == (wanted, type(wanted))


def test_sizes_and_addresses_are_masked_not_checked():
    assert U64(-1) == 2**64 - 1
    assert U64(2**64 + 5) == 5
    assert U64(True) == 1
    assert U32(-1) == 2**32 - 1
    assert U32(np.int64(7)) == 7


@pytest.mark.parametrize("given", [1.0, "1", None, np.int64(1), np.uint64(1)])
def test_sizes_and_addresses_must_be_python_ints(given):
    with pytest.raises(TypeError):
        U64(given)


@pytest.mark.parametrize("given", [1.0, "1", None])
@pytest.mark.parametrize("converter", [U32, I32])
def test_numbers_are_whole(converter, given):
    with pytest.raises(TypeError):
        converter(given)


@pytest.mark.parametrize("given", [2**31, -(2**31) - 1])
def test_signed_numbers_are_checked(given):
    with pytest.raises(TypeError, match="out of range"):
        I32(given)
    assert I32(np.int32(-5)) == -5
    assert [I32(-(1 << 31)), I32((1 << 31) - 1)] == [-(1 << 31), (1 << 31) - 1]


def test_texts_are_str_without_nulls():
    with pytest.raises(TypeError):
        STR(b"path")
    with pytest.raises(TypeError, match="null"):
        STR("a\0b")
    assert STR("pfad/ö") == "pfad/ö"


def test_handles_are_large_and_of_one_kind_only(acl):
    handles = {
        kind: [ok(make()) for _ in range(3)]
        for kind, make in [
            ("context", lambda: acl.rt.create_context(0)),
            ("stream", acl.rt.create_stream),
            ("event", acl.rt.create_event),
        ]
    }
    every = [handle for of_kind in handles.values() for handle in of_kind]
    assert len(set(every)) == 9
    assert min(every) > 2**48  # where no host mapping is
    assert acl.rt.set_context(handles["stream"][0]) == 107000


def test_a_size_of_minus_one_is_the_largest_size(acl):
    assert acl.rt.malloc(-1, 0) == (0, 207001)
    assert acl.rt.malloc_host(-1) == (0, 200000)


def test_the_text_of_the_last_refusal_is_read_once(acl):
    assert acl.rt.free(0) == 100000
    assert acl.get_recent_err_msg() == "free: the pointer is null"
    assert acl.get_recent_err_msg() is None
    ok(acl.rt.malloc(64, 0))
    assert acl.get_recent_err_msg() is None
