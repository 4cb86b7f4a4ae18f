"""Correct programs with models: in any order, results are right and no rule is violated."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.conftest import load_acl
from simulator.support.driving import D2H, H2D, content, fill, ok
from simulator.support.models import MATRIX, Loaded, rows_om, static_om

from ascend_simulator import Settings, report, reset_for_tests

GEARS = (1, 4, 8)
ROW, ANSWER = 16, 12
"""Bytes of a row of x and of y."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return rows_om(tmp_path_factory.mktemp("schedules"))


class Slot:
    """Buffers for one request, and the expected result."""

    def __init__(self, loaded):
        acl = self.acl = loaded.acl
        self.inputs = loaded.buffers(loaded.inputs.sizes)
        self.outputs = loaded.buffers(loaded.outputs.sizes)
        self.host_in = ok(acl.rt.malloc_host(ROW * max(GEARS)))
        self.host_out = ok(acl.rt.malloc_host(ANSWER * max(GEARS)))
        self.expected = None

    def submit(self, loaded, stream, x):
        """Submit one request, in the documented way."""
        acl, batch = self.acl, len(x)
        fill(self.host_in, x.tobytes())
        place, size = self.inputs.ptrs[0], self.inputs.sizes[0]
        ok(acl.mdl.set_dynamic_batch_size(loaded.id, self.inputs.dataset, 1, batch))
        ok(acl.rt.memcpy_async(place, size, self.host_in, ROW * batch, H2D, stream))
        datasets = self.inputs.dataset, self.outputs.dataset
        ok(acl.mdl.execute_async(loaded.id, *datasets, stream))
        size = ANSWER * max(GEARS)
        ok(
            acl.rt.memcpy_async(
                self.host_out, size, self.outputs.ptrs[0], ANSWER * batch, D2H, stream
            )
        )
        self.expected = x @ MATRIX

    def check(self):
        """Check the result after a wait."""
        if self.expected is not None:
            found = np.frombuffer(content(self.host_out, self.expected.nbytes), np.float32)
            np.testing.assert_array_equal(found.reshape(self.expected.shape), self.expected)
            self.expected = None


class Lane:
    """A further load of a model, its stream, and two alternating slots."""

    def __init__(self, acl, path):
        self.loaded = Loaded(acl, path)
        self.stream = ok(acl.rt.create_stream())
        self.slots = [Slot(self.loaded), Slot(self.loaded)]
        self.pending = []

    def submit(self, x):
        slot = next((slot for slot in self.slots if slot not in self.pending), None)
        if slot is None:
            self.synchronize()
            slot = self.slots[0]
        slot.submit(self.loaded, self.stream, x)
        self.pending.append(slot)

    def synchronize(self):
        ok(self.loaded.acl.rt.synchronize_stream(self.stream))
        for slot in self.pending:
            slot.check()
        self.pending.clear()


STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([*GEARS, None])), min_size=1, max_size=25
)


@pytest.mark.brute_force
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, seed=st.none() | st.integers(0, 1000))
def test_lanes_with_two_slots_compute_correctly_without_violations(path, steps, seed):
    """`steps`: a lane, and the rows of a request to submit there; None waits for it."""
    reset_for_tests(Settings(seed=seed))
    acl = load_acl()
    ok(acl.init())
    ok(acl.rt.set_device(0))
    lanes = [Lane(acl, path), Lane(acl, path)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, (lane, batch) in enumerate(steps):
            if batch is None:
                lanes[lane].synchronize()
            else:
                x = np.arange(number, number + 4 * batch, dtype=np.float32).reshape(batch, 4)
                lanes[lane].submit(x)
        for lane in lanes:
            lane.synchronize()
    assert report().broken == {}
    assert report().executions == sum(batch is not None for _, batch in steps)
    reset_for_tests(Settings())


def test_an_output_may_be_the_input_of_the_next_model_of_a_stream(acl, tmp_path):
    first, second = Loaded(acl, static_om(tmp_path)), Loaded(acl, rows_om(tmp_path))
    ok(second.set_batch(1))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    first.write(0, x)
    # 2 rows of 3 elements are a row of 4, and two elements that the gear does not read.
    ok(acl.update_data_buffer(second.inputs.handles[0], first.outputs.ptrs[0], 24))
    ok(first.execute_async())
    ok(second.execute_async())
    ok(acl.rt.synchronize_stream(0))
    between = (x @ MATRIX).reshape(-1)[:4]
    assert second.read(0).tolist() == [(between @ MATRIX).tolist()]
