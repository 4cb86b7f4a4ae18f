"""Executions: preconditions, and effects on memory."""

import numpy as np
import pytest
from runtime.support.graphs import onnx_model
from runtime.support.threads import Beside
from simulator.support.driving import D2D, D2H, H2D, Blocked, content, fail, fill, ok, pages
from simulator.support.models import (
    FLOAT,
    INT64,
    MATRIX,
    Loaded,
    breaks,
    compile_to,
    node,
    rows,
    rows_om,
    static_om,
    texts_om,
)
from support.waiting import until

from ascend_simulator import SimulatorViolation, SimulatorWarning, current, report
from ascend_simulator.codes import Code
from ascend_simulator.models.loaded import PATTERN

INVALID = Code.INVALID_PARAM
GE_FAILURE = Code.GE_FAILURE
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def loaded(acl, tmp_path):
    """A static model with its input written."""
    made = Loaded(acl, static_om(tmp_path))
    made.write(0, X)
    return made


def datasets(loaded):
    return loaded.inputs.dataset, loaded.outputs.dataset


def free_shapes(acl, folder):
    """`rows` with free shapes, described as two rows: its id and datasets."""
    mid = ok(acl.mdl.load_from_file(compile_to(folder, rows(), input_shape="x:-1,4")))
    made = []
    for nbytes in (32, 24):
        made.append(acl.mdl.create_dataset())
        buffer = acl.create_data_buffer(ok(acl.rt.malloc(nbytes, 0)), nbytes)
        ok(acl.mdl.add_dataset_buffer(made[-1], buffer))
    ok(acl.mdl.set_dataset_tensor_desc(made[0], acl.create_tensor_desc(0, [2, 4], 2), 0))
    return mid, *made


def resized(loaded, side, place, by):
    """Make the buffer of an input or output longer by this many bytes."""
    buffers = getattr(loaded, side)
    size = buffers.sizes[place] + by
    ok(loaded.acl.update_data_buffer(buffers.handles[place], buffers.ptrs[place], size))


# -- results -------------------------------------------------------------------------------------


def test_an_asynchronous_execution_computes_the_outputs(acl, loaded):
    stream = ok(acl.rt.create_stream())
    blocked = Blocked(stream)
    before = loaded.output_bytes(0)
    assert loaded.execute_async(stream) == 0
    assert loaded.output_bytes(0) == before
    blocked.release()
    assert acl.rt.synchronize_stream(stream) == 0
    assert loaded.read(0).tolist() == (X @ MATRIX).tolist()


def test_the_minimal_loop_of_the_documents_runs(acl, tmp_path):
    loaded = Loaded(acl, rows_om(tmp_path))
    stream = ok(acl.rt.create_stream())
    host_in, host_out = ok(acl.rt.malloc_host(128)), ok(acl.rt.malloc_host(96))
    for batch in (4, 1, 8):
        x = np.random.default_rng(batch).random((batch, 4), np.float32)
        fill(host_in, x.tobytes())
        place, size = loaded.inputs.ptrs[0], loaded.inputs.sizes[0]
        ok(acl.rt.memcpy_async(place, size, host_in, x.nbytes, H2D, stream))
        ok(loaded.set_batch(batch))
        ok(loaded.execute_async(stream))
        ok(acl.rt.memcpy_async(host_out, 96, loaded.outputs.ptrs[0], 12 * batch, D2H, stream))
        ok(acl.rt.synchronize_stream(stream))
        found = np.frombuffer(content(host_out, 12 * batch), np.float32).reshape(batch, 3)
        np.testing.assert_allclose(found, x @ MATRIX, rtol=1e-6)
    assert report().executions == 3
    assert report().broken == {}


def test_a_workspace_on_two_streams_is_found_unless_an_event_orders_them(acl, tmp_path):
    first, second = Loaded(acl, static_om(tmp_path)), Loaded(acl, rows_om(tmp_path))
    mid = ok(
        acl.mdl.load_from_file_with_mem(
            static_om(tmp_path), second.work, second.work_bytes, first.weights, first.weight_bytes
        )
    )
    ok(second.set_batch(4))
    one, two = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    ok(acl.mdl.execute_async(mid, *datasets(first), one))
    with breaks("stream.race"):
        second.execute_async(two)
    event = ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, one))
    ok(acl.rt.stream_wait_event(two, event))
    assert second.execute_async(two) == 0
    ok(acl.rt.synchronize_stream(two))


# -- memory --------------------------------------------------------------------------------------


def test_the_whole_workspace_is_overwritten(acl, tmp_path):
    path = static_om(tmp_path)
    work_bytes, _ = ok(acl.mdl.query_size(path))
    work = ok(acl.rt.malloc(work_bytes + 4096, 0))
    mid = ok(acl.mdl.load_from_file_with_mem(path, work, work_bytes + 1024, 0, 0))
    other = Loaded(acl, path)
    fill(work, bytes(work_bytes + 4096))
    ok(acl.mdl.execute(mid, *datasets(other)))
    assert content(work, work_bytes + 1024) == bytes([PATTERN]) * (work_bytes + 1024)
    assert content(work + work_bytes + 1024, 3072) == bytes(3072)


@pytest.mark.parametrize("at_its_end", [False, True])
def test_a_larger_workspace_of_the_same_block_is_overwritten_too(acl, tmp_path, at_its_end):
    small = Loaded(acl, static_om(tmp_path))
    path = compile_to(tmp_path, rows(), "large", input_shape="x:4096,4")
    large = Loaded(acl, path)
    assert large.work_bytes > small.work_bytes
    place = (large.work_bytes - small.work_bytes) * at_its_end
    work = ok(acl.rt.malloc(large.work_bytes, 0))
    given = work + place, small.work_bytes, small.weights, small.weight_bytes
    first = ok(acl.mdl.load_from_file_with_mem(static_om(tmp_path), *given))
    given = work, large.work_bytes, large.weights, large.weight_bytes
    second = ok(acl.mdl.load_from_file_with_mem(path, *given))
    fill(work, bytes(large.work_bytes))
    ok(acl.mdl.execute(first, *datasets(small)))
    ok(acl.mdl.execute(second, *datasets(large)))
    assert content(work, large.work_bytes) == bytes([PATTERN]) * large.work_bytes


def other_model(acl, loaded, folder):
    """A model whose output is at the start of the workspace."""
    other = Loaded(acl, static_om(folder))
    ok(acl.update_data_buffer(other.outputs.handles[0], loaded.work, 24))
    return other


WRITERS = {
    "memcpy": lambda acl, loaded, folder: acl.rt.memcpy(loaded.work, 8, X.ctypes.data, 8, H2D),
    "memcpy_async": lambda acl, loaded, folder: acl.rt.memcpy_async(
        loaded.work, 64, loaded.weights, 64, D2D, 0
    ),
    "memset": lambda acl, loaded, folder: acl.rt.memset(loaded.work, 64, 0, 64),
    "memset_async": lambda acl, loaded, folder: acl.rt.memset_async(loaded.work, 64, 0, 64, 0),
    "execution": lambda acl, loaded, folder: other_model(acl, loaded, folder).execute_async(),
    "test": lambda acl, loaded, folder: fill(loaded.work, bytes(64)),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_data_written_into_a_workspace_is_overwritten(acl, loaded, tmp_path, writer):
    ok(loaded.execute())
    for _ in range(2):
        WRITERS[writer](acl, loaded, tmp_path)
        ok(acl.rt.synchronize_device())
        assert content(loaded.work, 64) != bytes([PATTERN]) * 64
        ok(loaded.execute())
        assert content(loaded.work, loaded.work_bytes) == bytes([PATTERN]) * loaded.work_bytes


def test_a_workspace_write_between_two_executions_is_overwritten(acl, loaded):
    stream = ok(acl.rt.create_stream())
    for _ in range(3):
        blocked = Blocked(stream)
        ok(loaded.execute_async(stream))
        ok(acl.rt.memset_async(loaded.work, 64, 0, 64, stream))
        ok(loaded.execute_async(stream))
        blocked.release()
        ok(acl.rt.synchronize_stream(stream))
        assert content(loaded.work, 64) == bytes([PATTERN]) * 64
    ok(acl.rt.memset_async(loaded.work, 64, 0, 64, stream))
    ok(acl.rt.synchronize_stream(stream))
    assert content(loaded.work, 64) == bytes(64)


@pytest.mark.parametrize(
    ("side", "kind"), [("inputs", "work"), ("inputs", "weights"), ("outputs", "work")]
)
def test_tensors_within_workspace_or_weights_are_found(acl, loaded, side, kind):
    ptr = getattr(loaded, kind)
    buffers = getattr(loaded, side)
    ok(acl.update_data_buffer(buffers.handles[0], ptr, buffers.sizes[0]))
    if (side, kind) == ("inputs", "weights"):
        assert loaded.execute() == 0  # two reads
        return
    with breaks("model.overlapping-memory"):
        loaded.execute()


@pytest.mark.parametrize("shift", [-64, 0, 64])
def test_an_output_over_an_input_is_found(acl, tmp_path, shift):
    loaded = Loaded(acl, static_om(tmp_path, 32))  # 512 bytes in, 384 out
    block = ok(acl.rt.malloc(4096, 0))
    ok(acl.update_data_buffer(loaded.inputs.handles[0], block + 64, 512))
    ok(acl.update_data_buffer(loaded.outputs.handles[0], block + 64 + shift, 384))
    with breaks("model.overlapping-memory"):
        loaded.execute()


def test_adjacent_tensors_begin_after_the_tail_of_the_preceding_tensor(acl, tmp_path):
    loaded = Loaded(acl, static_om(tmp_path, 30))  # 480 bytes in, 360 out
    block = ok(acl.rt.malloc(4096, 0))
    ok(acl.update_data_buffer(loaded.inputs.handles[0], block, 480))
    ok(acl.update_data_buffer(loaded.outputs.handles[0], block + 512, 360))
    assert loaded.execute() == 0


def test_outputs_have_tails_too(acl, tmp_path):
    loaded = Loaded(acl, texts_om(tmp_path, "8,4,8,4;1,4,1,4"))  # 64 and 256 bytes out
    ok(loaded.set_dims(8, 4, 8, 4))
    block = ok(acl.rt.malloc(4096, 0))
    ok(acl.update_data_buffer(loaded.outputs.handles[0], block, 64))
    ok(acl.update_data_buffer(loaded.outputs.handles[1], block + 64, 256))
    with breaks("model.no-tail"):
        loaded.execute()


def test_adjacent_tensors_must_be_32_bytes_apart(acl, tmp_path):
    loaded = Loaded(acl, static_om(tmp_path, 32))
    block = ok(acl.rt.malloc(4096, 0))
    x = np.arange(128, dtype=np.float32).reshape(32, 4)
    fill(block, x.tobytes())
    ok(acl.update_data_buffer(loaded.inputs.handles[0], block, 512))
    ok(acl.update_data_buffer(loaded.outputs.handles[0], block + 512, 384))
    with breaks("model.no-tail"):
        loaded.execute()
    ok(acl.update_data_buffer(loaded.outputs.handles[0], block + 576, 384))
    assert loaded.execute() == 0
    assert content(block + 576, 384) == (x @ MATRIX).tobytes()


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_buffers_are_aligned_as_malloc_makes_them(acl, loaded, side):
    buffers = getattr(loaded, side)
    ok(acl.update_data_buffer(buffers.handles[0], ok(acl.rt.malloc(128, 0)) + 32, 32))
    with breaks("model.memory-unaligned"):
        loaded.execute()


def test_two_inputs_may_be_the_same_memory(acl, tmp_path):
    loaded = Loaded(acl, texts_om(tmp_path))
    ok(loaded.set_dims(2, 8, 2, 8))
    ids = np.arange(16).reshape(2, 8)
    loaded.write(0, ids)
    ok(acl.update_data_buffer(loaded.inputs.handles[1], loaded.inputs.ptrs[0], 128))
    assert loaded.execute() == 0
    assert loaded.read(0).tolist() == (ids * ids).sum(1).tolist()


def registered(acl, nbytes):
    """Return the address under which the device accesses host memory."""
    return ok(acl.rt.host_register(pages().ctypes.data, nbytes, 0))


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("memory.host-for-device", lambda acl: ok(acl.rt.malloc_host(64))),
        ("memory.host-for-device", lambda acl: registered(acl, 64)),
        ("memory.beyond-block", lambda acl: ok(acl.rt.malloc(16, 0))),
        ("memory.unknown", lambda acl: 0xDE00000000FFFF40),
    ],
)
def test_memory_that_is_not_on_the_device_is_detected(acl, loaded, side, rule, given):
    buffers = getattr(loaded, side)
    ok(acl.update_data_buffer(buffers.handles[0], given(acl), 32))
    with breaks(rule):
        loaded.execute()


def test_tensors_must_not_be_accessed_before_the_execution_ends(acl, loaded):
    stream = ok(acl.rt.create_stream())
    blocked = Blocked(stream)
    ok(loaded.execute_async(stream))
    with breaks("memory.busy"):
        loaded.write(0, X)
    with breaks("memory.busy"):
        loaded.read(0)
    for ptr in (loaded.inputs.ptrs[0], loaded.outputs.ptrs[0]):
        with breaks("memory.free-while-in-use"):
            acl.rt.free(ptr)
    blocked.release()
    ok(acl.rt.synchronize_stream(stream))
    loaded.write(0, X)


# -- counts and lengths --------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_the_number_of_buffers_must_match_the_model(acl, loaded, side, asynchronous):
    run = loaded.execute_async if asynchronous else loaded.execute
    made = getattr(loaded, side)
    ok(acl.mdl.add_dataset_buffer(made.dataset, made.handles[0]))
    assert run() == GE_FAILURE
    assert "E13025" in acl.get_recent_err_msg()
    setattr(loaded, side, loaded.buffers([]))
    assert run() == GE_FAILURE


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize(("by", "found"), [(-1, "violation"), (-64, "violation"), (-65, "code")])
def test_a_device_accepts_buffers_up_to_64_bytes_too_short(acl, tmp_path, side, by, found):
    loaded = Loaded(acl, static_om(tmp_path, 16))
    resized(loaded, side, 0, by)
    if found == "code":
        assert loaded.execute() == GE_FAILURE
        assert "(145000)" in acl.get_recent_err_msg()
        return
    with breaks("model.short-buffer"):
        loaded.execute()


def test_longer_buffers_are_accepted_and_unchanged_after_the_tensor(acl, loaded):
    ptr = loaded.malloc(256)
    fill(ptr, bytes(256))
    ok(acl.update_data_buffer(loaded.outputs.handles[0], ptr, 256))
    assert loaded.execute() == 0
    assert content(ptr, 256) == (X @ MATRIX).tobytes() + bytes(256 - 24)


@pytest.mark.parametrize("size", [16 * 4, 16 * 8])
def test_at_a_gear_buffers_have_its_size_or_the_largest(acl, tmp_path, size):
    loaded = Loaded(acl, rows_om(tmp_path))
    ok(loaded.set_batch(4))
    ok(acl.update_data_buffer(loaded.inputs.handles[0], loaded.inputs.ptrs[0], size))
    assert loaded.execute() == 0
    ok(loaded.set_batch(8))
    if size < 16 * 8:
        with breaks("model.short-buffer"):
            loaded.execute()


def test_buffers_must_include_the_size_slack(started, tmp_path):
    acl = started(size_slack=32)
    loaded = Loaded(acl, static_om(tmp_path))
    assert loaded.execute() == 0
    resized(loaded, "outputs", 0, -32)
    with breaks("model.short-buffer"):
        loaded.execute()


def test_a_gear_buffer_without_room_is_refused(acl, tmp_path):
    loaded = Loaded(acl, rows_om(tmp_path))
    ok(loaded.set_batch(4))
    ok(acl.update_data_buffer(loaded.inputs.handles[1], loaded.inputs.ptrs[1], 4))
    assert loaded.execute() == 0  # 4 bytes for each value are enough
    ok(acl.update_data_buffer(loaded.inputs.handles[1], loaded.inputs.ptrs[1], 3))
    assert loaded.execute() == GE_FAILURE


# -- null ----------------------------------------------------------------------------------------


def test_null_datasets_and_unknown_models_are_refused(acl, loaded):
    mdl, (inputs, outputs) = acl.mdl, datasets(loaded)
    config = mdl.create_exec_config_handle()
    for execute in (
        mdl.execute,
        lambda *given: mdl.execute_async(*given, 0),
        lambda *given: mdl.execute_v2(*given, 0, config),
    ):
        assert execute(loaded.id, 0, outputs) == INVALID
        assert execute(loaded.id, inputs, 0) == INVALID
        assert execute(loaded.id + 1, inputs, outputs) == Code.GE_EXEC_MODEL_ID_INVALID


def test_an_output_without_an_address_gets_memory_if_its_caller_waits(acl, loaded):
    handle = loaded.outputs.handles[0]
    ok(acl.update_data_buffer(handle, 0, 0))
    with breaks("model.null-buffer"):
        loaded.execute_async()
    ok(acl.update_data_buffer(handle, 0, 0))
    assert loaded.execute() == 0
    ptr, size = acl.get_data_buffer_addr(handle), acl.get_data_buffer_size_v2(handle)
    assert content(ptr, size) == (X @ MATRIX).tobytes()
    assert acl.rt.free(ptr) == 0


def test_a_destroyed_buffer_in_a_dataset_is_found(acl, loaded):
    ok(acl.destroy_data_buffer(loaded.inputs.handles[0]))
    with breaks("model.dead-handle"):
        loaded.execute()


# -- contexts, streams, models -------------------------------------------------------------------


def test_a_model_is_executed_in_the_context_of_its_load(acl, loaded):
    ok(acl.rt.create_context(0))
    for execute in (loaded.execute, loaded.execute_async):
        with breaks("model.other-context"):
            execute()


def test_a_stream_of_another_context_is_refused(acl, loaded):
    home = ok(acl.rt.get_context())
    ok(acl.rt.create_context(0))
    stream = ok(acl.rt.create_stream())
    ok(acl.rt.set_context(home))
    assert loaded.execute_async(stream) == Code.RT_STREAM_CONTEXT


def test_one_model_on_two_streams_at_a_time_is_found(acl, loaded, tmp_path):
    one, two = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    ok(loaded.execute_async(one))
    with pytest.raises(SimulatorViolation, match=r"model.busy|stream.race"):
        loaded.execute_async(two)
    ok(acl.rt.synchronize_stream(one))
    assert loaded.execute_async(two) == 0
    ok(acl.rt.synchronize_stream(two))


# -- failures ------------------------------------------------------------------------------------


def test_a_failed_execution_leaves_the_pattern(acl, loaded):
    current().faults.arm("execute@1=507011")
    assert loaded.execute() == 507011
    assert loaded.output_bytes(0) == bytes([PATTERN]) * 24
    assert loaded.execute() == 0


def test_an_error_of_onnxruntime_is_a_failed_execution(acl, tmp_path):
    model = onnx_model(
        [node("Gather", ["table", "ids"], ["y"])],
        [("ids", INT64, [2])],
        [("y", FLOAT, [2])],
        {"table": np.float32([1, 2, 3])},
    )
    loaded = Loaded(acl, compile_to(tmp_path, model))
    loaded.write(0, np.array([1, 99]))
    assert loaded.execute() == Code.RT_MODEL_EXECUTE
    assert "Gather" in acl.get_recent_err_msg()
    ok(loaded.execute_async())
    assert acl.rt.synchronize_stream(0) == Code.RT_MODEL_EXECUTE


def test_a_violation_on_a_stream_is_raised_by_a_wait_for_a_later_event(acl, loaded):
    stream, event = ok(acl.rt.create_stream()), ok(acl.rt.create_event())
    fill(loaded.weights, b"other weights")
    ok(loaded.execute_async(stream))
    ok(acl.rt.record_event(event, stream))
    with breaks("model.weights-changed"):
        acl.rt.synchronize_event(event)
    ok(acl.rt.synchronize_stream(stream))


def test_a_violation_on_a_stream_is_raised_by_a_query_of_a_later_event(machine, tmp_path):
    acl = machine(seed=1)  # with a seed, polling runs the stream
    ok(acl.init())
    ok(acl.rt.set_device(0))
    loaded = Loaded(acl, static_om(tmp_path))
    event = ok(acl.rt.create_event())
    fill(loaded.weights, b"other weights")
    ok(loaded.execute_async())
    ok(acl.rt.record_event(event, 0))
    assert acl.rt.query_event_status(event) == (0, 0)
    with breaks("model.weights-changed"):
        acl.rt.query_event_status(event)
    ok(acl.rt.synchronize_stream(0))


def test_a_violation_without_a_wait_is_raised_when_the_stream_is_destroyed(acl, loaded):
    stream = ok(acl.rt.create_stream())
    fill(loaded.weights, b"other weights")
    ok(loaded.execute_async(stream))
    with (
        pytest.warns(SimulatorWarning, match="stream.destroyed-pending"),
        breaks("model.weights-changed"),
    ):
        acl.rt.destroy_stream(stream)


def test_a_wait_for_a_lost_device_returns_a_code(acl, loaded):
    current().faults.arm("execute@1=lost")
    assert loaded.execute() == Code.RT_LOST_HEARTBEAT
    assert loaded.execute() == Code.RT_DRV_INTERNAL_ERROR


@pytest.mark.parametrize("shapes", ["fixed", "free"])
@pytest.mark.parametrize("lost", [True, False])
def test_a_wait_for_a_dropped_execution_reports_the_reason(acl, tmp_path, shapes, lost):
    if shapes == "fixed":
        loaded = Loaded(acl, static_om(tmp_path))
        mid, inputs, outputs = loaded.id, *datasets(loaded)
    else:
        mid, inputs, outputs = free_shapes(acl, tmp_path)
    context, stream = ok(acl.rt.get_context()), ok(acl.rt.create_stream())
    ok(acl.rt.set_stream_failure_mode(stream, 1))
    config = acl.mdl.create_exec_config_handle()
    blocked = Blocked(stream)
    fail(stream, Code.RT_AICORE_TIMEOUT)

    def execute():
        ok(acl.rt.set_context(context))
        return acl.mdl.execute_v2(mid, inputs, outputs, stream, config)

    waiting = Beside(execute)
    ordering, home = current().streams.ordering, current().stream(stream, "test").number
    until(lambda: ordering.last(home) == 3, "the execution")
    if lost:
        current().lose_device()
    blocked.release()
    assert waiting.result() == (Code.RT_LOST_HEARTBEAT if lost else Code.RT_STREAM_ABORT)


def test_launch_us_delays_executions(started, tmp_path):
    slow = 20_000
    acl = started(launch_us=slow)
    loaded = Loaded(acl, static_om(tmp_path))
    start, end = ok(acl.rt.create_event()), ok(acl.rt.create_event())
    ok(acl.rt.record_event(start, 0))
    ok(loaded.execute_async())
    ok(acl.rt.record_event(end, 0))
    ok(acl.rt.synchronize_event(end))
    assert ok(acl.rt.event_elapsed_time(start, end)) >= slow / 1000


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16])
def test_elements_of_every_type_are_computed(acl, tmp_path, kind):
    model = onnx_model([node("Identity", ["x"], ["y"])], [("x", kind, [5])], [("y", kind, [5])])
    loaded = Loaded(acl, compile_to(tmp_path, model))
    given = bytes(place % 2 for place in range(loaded.inputs.sizes[0]))
    fill(loaded.inputs.ptrs[0], given)
    assert loaded.execute() == 0
    assert loaded.output_bytes(0) == given


def test_scalars_are_computed(acl, tmp_path):
    model = onnx_model([node("Neg", ["x"], ["y"])], [("x", FLOAT, [])], [("y", FLOAT, [])])
    for flags in ({}, {"input_shape": "x:"}):
        loaded = Loaded(acl, compile_to(tmp_path, model, **flags))
        loaded.write(0, np.float32(3))
        assert loaded.execute() == 0
        assert loaded.read(0) == -3


# -- execute_v2 ----------------------------------------------------------------------------------


def test_an_execution_takes_time_limits_and_no_workspace(acl, loaded):
    mdl = acl.mdl
    config = mdl.create_exec_config_handle()
    stream = ok(acl.rt.create_stream())
    for limit in (0, 1):
        ok(mdl.set_exec_config_opt(config, limit, 1000))
    work, size = 2, 3  # in the headers, accepted by no call
    assert [mdl.set_exec_config_opt(config, attr, 64) for attr in (work, size, 8, 99)] == [
        INVALID
    ] * 4
    assert mdl.execute_v2(loaded.id, *datasets(loaded), stream, config) == 0
    assert loaded.read(0).tolist() == (X @ MATRIX).tolist()
    assert mdl.destroy_exec_config_handle(config) == 0
    assert mdl.execute_v2(loaded.id, *datasets(loaded), stream, 0) == INVALID
