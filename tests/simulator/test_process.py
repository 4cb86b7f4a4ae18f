"""init, finalize, the loss of the device, and counters."""

import ctypes
import json
import math
from threading import Event

import pytest
from runtime.support.threads import Beside
from simulator.support.driving import H2D, Blocked, ok

import ascend_simulator
from ascend_simulator import current
from ascend_simulator.streams.tasks import Task


@pytest.fixture
def fresh(machine):
    """`acl` before init."""
    return machine()


def config(tmp_path, text):
    path = tmp_path / "acl.json"
    path.write_text(text)
    return str(path)


def nested(depth, kind):
    """Return JSON with `depth` nested objects, or nested arrays in one object."""
    value = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"key": value}
    return json.dumps({"key": value} if kind == "list" else value)


def test_init_and_finalize_may_follow_each_other_again(fresh):
    for _ in range(2):
        assert fresh.init() == 0
        assert fresh.finalize() == 0
    assert fresh.finalize() == 100037


def test_finalize_without_init_is_refused(fresh):
    assert fresh.finalize() == 100037
    assert fresh.finalize_reference() == (0, 100037)


def test_a_second_init_counts_and_finalize_takes_all_counts(fresh):
    assert [fresh.init(), fresh.init(), fresh.init()] == [0, 100002, 100002]
    assert fresh.finalize_reference() == (2, 0)
    assert fresh.finalize() == 0
    assert fresh.finalize_reference() == (0, 100037)


def test_the_last_reference_ends_it(fresh):
    fresh.init()
    fresh.init()
    assert [fresh.finalize_reference(), fresh.finalize_reference()] == [(1, 0), (0, 0)]
    assert fresh.finalize() == 100037


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"err_msg_mode": "0", "max_opqueue_num": 5}',
        '{"dump": {"dump_list": [{"model_name": "m"}], "dump_path": "/tmp", "dump_mode": "all"}}',
        '{"profiler": {"switch": "on"}}',
        '{"defaultDevice": {"default_device": 0}, "StackSize": {"aicore_stack_size": 32768}}',
    ],
)
def test_legal_configurations(fresh, tmp_path, text):
    assert fresh.init(config(tmp_path, text)) == 0


def test_a_second_init_with_another_configuration_is_refused(fresh, tmp_path):
    assert fresh.init(config(tmp_path, '{"max_opqueue_num": 5}')) == 0
    assert fresh.init() == 100002  # the file is not read while initialised
    assert fresh.init(str(tmp_path / "none.json")) == 100002
    assert fresh.finalize() == 0
    assert fresh.init() == 100000
    assert fresh.init(config(tmp_path, '{ "max_opqueue_num":5 }')) == 0


def test_a_configuration_that_cannot_be_read(fresh, tmp_path):
    assert fresh.init(str(tmp_path / "none.json")) == 100003
    assert "none.json" in fresh.get_recent_err_msg()
    assert fresh.init(str(tmp_path)) == 100003


@pytest.mark.parametrize("text", ["{", "[]", "3", "nothing", "\xff"])
def test_a_configuration_must_be_an_object(fresh, tmp_path, text):
    path = tmp_path / "acl.json"
    path.write_bytes(text.encode("latin-1"))
    assert fresh.init(str(path)) == 100006
    assert fresh.finalize() == 100037


@pytest.mark.parametrize("kind", ["dict", "list"])
def test_a_configuration_nests_ten_deep_and_no_deeper(fresh, tmp_path, kind):
    assert fresh.init(config(tmp_path, nested(11, kind))) == 100006
    assert fresh.init(config(tmp_path, nested(10, kind))) == 0


def test_error_texts_are_per_thread(acl):
    acl.rt.free(0)
    assert Beside(acl.get_recent_err_msg).result() is None
    assert acl.get_recent_err_msg()


def test_error_texts_are_per_process_where_configured(fresh, tmp_path):
    assert fresh.init(config(tmp_path, '{"err_msg_mode": "1"}')) == 0
    assert fresh.rt.set_device(3) == 107001
    assert "found 3" in Beside(fresh.get_recent_err_msg).result()
    assert fresh.get_recent_err_msg() is None


def test_nothing_is_left_after_all_was_released(acl):
    stream, event = ok(acl.rt.create_stream()), ok(acl.rt.create_event())
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    context = ok(acl.rt.create_context(0))
    live = ascend_simulator.report().live
    assert len(live) == 5
    ok(acl.rt.destroy_context(context))
    ok(acl.rt.set_device(0))
    ok(acl.rt.free(device))
    ok(acl.rt.free_host(pinned))
    ok(acl.rt.destroy_event(event))
    ok(acl.rt.destroy_stream(stream))
    ok(acl.rt.reset_device(0))
    ok(acl.rt.reset_device(0))
    assert ascend_simulator.report().live == []
    assert acl.finalize() == 0


def test_finalize_looks_at_the_red_zones(acl):
    ptr = ok(acl.rt.malloc_host(64))
    ctypes.memset(ptr + 64, 0, 1)
    with pytest.raises(ascend_simulator.SimulatorViolation, match=r"memory\.red-zone"):
        acl.finalize()


def test_destroying_a_context_raises_violations_of_its_streams(acl):
    def finds():
        raise ascend_simulator.SimulatorViolation("stream.race", "a test wants it")

    ok(acl.rt.create_context(0))
    current().stream(0, "test").submit(Task(finds, (), (), "finds"))
    with pytest.raises(ascend_simulator.SimulatorViolation, match="a test wants it"):
        acl.rt.destroy_context(ok(acl.rt.get_context()))


def test_every_call_on_a_lost_device_fails(acl):
    stream, ptr = ok(acl.rt.create_stream()), ok(acl.rt.malloc(64, 0))
    current().lose_device()
    assert acl.rt.malloc(64, 0) == (0, 507899)
    assert acl.rt.free(ptr) == 507899
    assert acl.rt.memset_async(ptr, 64, 0, 64, stream) == 507899
    assert acl.rt.synchronize_stream(stream) == 507010
    assert acl.rt.synchronize_device() == 507010
    assert acl.rt.get_mem_info(1) == (0, 0, 507899)
    assert acl.finalize() == 507899
    assert "lost" in acl.get_recent_err_msg()


@pytest.mark.parametrize("wait_for", ["stream", "device", "event"])
def test_a_wait_fails_when_the_device_is_lost(acl, wait_for):
    ptr, event = ok(acl.rt.malloc(64, 0)), ok(acl.rt.create_event())
    blocked = Blocked()
    ok(acl.rt.memset_async(ptr, 64, 1, 64, 0))
    ok(acl.rt.record_event(event, 0))
    context = ok(acl.rt.get_context())
    entered = Event()

    def wait():
        ok(acl.rt.set_context(context))
        entered.set()
        if wait_for == "stream":
            return acl.rt.synchronize_stream(0)
        if wait_for == "device":
            return acl.rt.synchronize_device()
        return acl.rt.synchronize_event(event)

    waiting = Beside(wait)
    assert blocked.entered.wait(30)
    assert entered.wait(30)
    current().lose_device()
    blocked.release()
    assert waiting.result() == 507010
    assert set(current().memory.find(ptr).content) == {0x7F}  # queued tasks are not run


def test_calls_bytes_and_allocations_are_counted(acl):
    device, pinned = ok(acl.rt.malloc(100, 0)), ok(acl.rt.malloc_host(100))
    for _ in range(3):
        ok(acl.rt.memcpy(device, 100, pinned, 100, H2D))
    ok(acl.rt.memcpy_async(device, 100, pinned, 64, H2D, 0))
    ok(acl.rt.synchronize_stream(0))
    report = ascend_simulator.report()
    assert report.calls["rt.memcpy"] == 3
    assert report.copied_bytes == {"ACL_MEMCPY_HOST_TO_DEVICE": 364}
    assert report.mallocs == {"load": 1}
    assert report.synchronizations == 1
    assert report.used_bytes == [4096]


def test_waiting_counts_as_no_time_under_the_gil(acl):
    blocked, begun = Blocked(), Event()
    context = ok(acl.rt.get_context())

    def wait():
        ok(acl.rt.set_context(context))
        begun.set()
        return acl.rt.synchronize_stream(0)

    waiting = Beside(wait)
    assert begun.wait(30)
    held = current().counters.gil_held_ns
    assert held > 0
    blocked.release()
    assert waiting.result() == 0
    assert current().counters.gil_held_ns == held


def test_allocations_of_the_run_phase_are_counted_separately(started):
    acl = started(mode="lenient")
    ok(acl.rt.malloc(64, 0))
    ascend_simulator.freeze()
    with pytest.warns(ascend_simulator.SimulatorWarning):
        ok(acl.rt.malloc(64, 0))
    ascend_simulator.thaw()
    ok(acl.rt.malloc(64, 0))
    assert ascend_simulator.report().mallocs == {"load": 2, "run": 1}


@pytest.mark.parametrize(("least", "expected"), [("1", True), ("3", False), (None, False)])
def test_app_log_is_printed_if_canns_variables_enable_it(
    machine, monkeypatch, capsys, least, expected
):
    acl = machine()
    monkeypatch.setenv("ASCEND_SLOG_PRINT_TO_STDOUT", "1")
    monkeypatch.delenv("ASCEND_GLOBAL_LOG_LEVEL", raising=False)
    if least:
        monkeypatch.setenv("ASCEND_GLOBAL_LOG_LEVEL", least)
    assert acl.app_log(2, "it is late") is None
    assert capsys.readouterr().out.endswith("): it is late\n") == expected
    assert acl.app_log(3, "it is too late") is None
    assert capsys.readouterr().out.startswith("[ERROR] APP(")
    monkeypatch.setenv("ASCEND_SLOG_PRINT_TO_STDOUT", "0")
    acl.app_log(3, "not printed")
    assert capsys.readouterr().out == ""


def test_the_version_of_the_interface(acl):
    assert acl.get_version() == (1, 16, 0, 0)


@pytest.mark.parametrize(("number", "bits"), [(1.0, 0x3C00), (-2.5, 0xC100), (1e9, 0x7C00)])
def test_half_precision_numbers_are_converted_in_both_directions(acl, number, bits):
    assert acl.float_to_float16(number) == bits
    assert acl.float16_to_float(bits) == (number if number < 1e5 else float("inf"))


def test_a_limit_of_waiting_tasks_is_accepted(acl):
    ok(acl.rt.set_op_wait_timeout(5))


@pytest.mark.parametrize(
    ("soc", "most"), [("Ascend910B4", 1091), ("Ascend310P3", 547), ("Ascend910ProA", 68)]
)
def test_the_time_limit_of_operators_is_at_most_the_default_of_the_chip(machine, soc, most):
    acl = machine(soc=soc)
    ok(acl.init())
    assert acl.rt.set_op_execute_time_out(5) == 107002
    ok(acl.rt.set_device(0))
    limits = [current().faults.operator_limit_s]
    for seconds in (5, 2000, 0):
        ok(acl.rt.set_op_execute_time_out(seconds))
        limits.append(current().faults.operator_limit_s)
    assert limits == [most, 5, most, math.inf]
