"""Models with free shapes: executed synchronously, without a memory plan."""

import numpy as np
import pytest
from runtime.support.graphs import onnx_model
from runtime.support.threads import Beside
from simulator.support.driving import H2D, Blocked, content, ok
from simulator.support.models import (
    FLOAT,
    INT64,
    MATRIX,
    Loaded,
    breaks,
    compile_to,
    node,
    nonzero,
    rows,
    static_om,
)
from support.waiting import until

from ascend_simulator import current
from ascend_simulator.codes import Code

INVALID = Code.INVALID_PARAM


@pytest.fixture
def free(acl, tmp_path):
    """`rows` of 2 to 8 rows, loaded, with buffers for 8 rows."""
    return FreeModel(acl, compile_to(tmp_path, rows(), input_shape="x:2~8,4"))


class FreeModel:
    """A model with free shapes, one input and one output."""

    def __init__(self, acl, path, input_bytes=128, output_bytes=96):
        self.acl, self.id = acl, ok(acl.mdl.load_from_file(path))
        self.inputs, self.outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
        self.ptrs, self.handles = [], []
        for dataset, nbytes in ((self.inputs, input_bytes), (self.outputs, output_bytes)):
            ptr = ok(acl.rt.malloc(nbytes, 0)) if nbytes else 0
            handle = acl.create_data_buffer(ptr, nbytes)
            ok(acl.mdl.add_dataset_buffer(dataset, handle))
            self.ptrs.append(ptr)
            self.handles.append(handle)

    def write(self, array):
        ok(self.acl.rt.memcpy(self.ptrs[0], 128, array.ctypes.data, array.nbytes, H2D))

    def tell(self, *dims):
        desc = self.acl.create_tensor_desc(0, list(dims), 2)
        ok(self.acl.mdl.set_dataset_tensor_desc(self.inputs, desc, 0))
        self.acl.destroy_tensor_desc(desc)

    def execute(self):
        return self.acl.mdl.execute(self.id, self.inputs, self.outputs)

    def output_dims(self):
        desc = self.acl.mdl.get_dataset_tensor_desc(self.outputs, 0)
        count = self.acl.get_tensor_desc_num_dims(desc)
        return [ok(self.acl.get_tensor_desc_dim_v2(desc, place)) for place in range(count)]


def test_input_dims_are_set_and_output_dims_are_returned(free):
    for n in (3, 8, 2):
        x = np.random.default_rng(n).random((n, 4), np.float32)
        free.write(x)
        free.tell(n, 4)
        assert free.execute() == 0
        assert free.output_dims() == [n, 3]
        found = np.frombuffer(content(free.ptrs[1], 12 * n), np.float32).reshape(n, 3)
        np.testing.assert_allclose(found, x @ MATRIX, rtol=1e-6)


def test_execute_v2_is_the_same_on_a_stream(acl, free):
    stream = ok(acl.rt.create_stream())
    config = acl.mdl.create_exec_config_handle()
    free.tell(2, 4)
    assert acl.mdl.execute_v2(free.id, free.inputs, free.outputs, stream, config) == 0
    assert free.output_dims() == [2, 3]


def test_an_executions_objects_are_in_use_until_a_wait(acl, free):
    context, stream = ok(acl.rt.get_context()), ok(acl.rt.create_stream())
    other = ok(acl.rt.create_stream())
    config = acl.mdl.create_exec_config_handle()
    free.tell(2, 4)
    blocked = Blocked(stream)

    def execute():
        ok(acl.rt.set_context(context))
        return acl.mdl.execute_v2(free.id, free.inputs, free.outputs, stream, config)

    running = Beside(execute)
    home, ordering = current().stream(stream, "test").number, current().streams.ordering
    until(lambda: ordering.last(home) == 2, "the execution")
    for rule, misuse in (
        ("model.unload-while-executing", lambda: acl.mdl.unload(free.id)),
        ("dataset.destroyed-in-use", lambda: acl.mdl.destroy_dataset(free.inputs)),
        ("dataset.destroyed-in-use", lambda: acl.destroy_data_buffer(free.handles[1])),
    ):
        with breaks(rule):
            misuse()
    with breaks("model.busy"):
        acl.mdl.execute_v2(free.id, free.inputs, free.outputs, other, config)
    blocked.release()
    assert running.result() == 0
    assert acl.mdl.unload(free.id) == 0


def test_input_dims_must_be_set(acl, free):
    assert free.execute() == INVALID
    assert "no tensor description" in acl.get_recent_err_msg()


@pytest.mark.parametrize("dims", [(1, 4), (9, 4), (2, 5), (2,), (2, 4, 1)])
def test_dims_outside_the_compiled_ranges_are_refused(free, dims):
    free.tell(*dims)
    assert free.execute() == INVALID


def test_short_buffers_are_refused_with_the_needed_bytes(acl, free):
    free.tell(8, 4)
    ok(acl.update_data_buffer(free.handles[0], free.ptrs[0], 127))
    assert free.execute() == Code.GE_FAILURE
    assert "found 127 bytes, expected 128" in acl.get_recent_err_msg()
    ok(acl.update_data_buffer(free.handles[0], free.ptrs[0], 128))
    ok(acl.update_data_buffer(free.handles[1], free.ptrs[1], 95))
    assert free.execute() == Code.GE_FAILURE
    assert "found 95 bytes, expected 96" in acl.get_recent_err_msg()


def test_an_output_without_an_address_gets_memory(acl, tmp_path):
    free = FreeModel(acl, compile_to(tmp_path, nonzero()), 20, 0)
    x = np.float32([0, 3, 0, 0, 7])
    free.write(x)
    free.tell(5)
    assert free.execute() == 0
    assert free.output_dims() == [1, 2]
    ptr = acl.get_data_buffer_addr(free.handles[1])
    assert np.frombuffer(content(ptr, 16), np.int64).tolist() == [1, 4]
    assert acl.get_data_buffer_size_v2(free.handles[1]) == 16
    assert acl.rt.free(ptr) == 0


def test_an_error_of_onnxruntime_is_a_failed_execution(acl, tmp_path):
    model = onnx_model(
        [node("Gather", ["table", "x"], ["y"])],
        [("x", INT64, ["n"])],
        [("y", FLOAT, ["n"])],
        {"table": np.float32([1, 2, 3])},
    )
    free = FreeModel(acl, compile_to(tmp_path, model, input_shape="x:-1"))
    free.write(np.array([1, 99]))
    free.tell(2)
    assert free.execute() == Code.RT_MODEL_EXECUTE
    assert "Gather" in acl.get_recent_err_msg()


def test_missing_buffers_are_refused(acl, free):
    free.tell(2, 4)
    empty = acl.mdl.create_dataset()
    for datasets in ((empty, free.outputs), (free.inputs, empty)):
        assert acl.mdl.execute(free.id, *datasets) == INVALID
        assert "found 0 buffers, expected 1" in acl.get_recent_err_msg()


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("model.null-buffer", lambda free: 0),
        ("model.memory-unaligned", lambda free: free.ptrs[0] + 4),
        ("model.overlapping-memory", lambda free: free.ptrs[1]),
        ("memory.host-for-device", lambda free: ok(free.acl.rt.malloc_host(64))),
    ],
)
def test_memory_rules_apply_to_free_shapes(free, rule, given):
    free.tell(2, 4)
    ok(free.acl.update_data_buffer(free.handles[0], given(free), 32))
    with breaks(rule):
        free.execute()


def test_free_shapes_cannot_be_executed_asynchronously(acl, free):
    free.tell(2, 4)
    code = acl.mdl.execute_async(free.id, free.inputs, free.outputs, 0)
    assert code == Code.API_NOT_SUPPORT


def test_failures_are_returned_to_the_caller(free):
    free.tell(2, 4)
    current().faults.arm("execute@1=507015")
    assert free.execute() == 507015
    assert free.execute() == 0
    current().faults.arm("execute@1=lost")
    assert free.execute() == Code.RT_LOST_HEARTBEAT


def test_a_busy_gear_buffer_is_a_violation(acl, free, tmp_path):
    planned = Loaded(acl, static_om(tmp_path))
    ok(acl.update_data_buffer(planned.outputs.handles[0], free.ptrs[0], 24))
    stream = ok(acl.rt.create_stream())
    blocked = Blocked(stream)
    ok(planned.execute_async(stream))
    free.tell(2, 4)
    with breaks("stream.race"):
        free.execute()
    blocked.release()
    ok(acl.rt.synchronize_stream(stream))
