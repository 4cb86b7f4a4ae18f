"""Executors with several buffer sets: the copies of one execution while another computes."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event

import numpy as np
import pytest
from runtime.engines.conformance_engine import token_batch
from runtime.npu.driver.test_om_serving import on_card, right, text
from runtime.support.ascend import assert_allocates_nothing, pinned
from runtime.support.configs import encoder_config

from ascend_simulator import current, freeze
from ascend_simulator.streams.tasks import Task
from ge_runtime import PlanFault, Runtime
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import ConfigFault, EngineFault, EngineLost
from ge_runtime.npu.driver.cann_values import DriverFault
from ge_runtime.npu.engines.ascend_backend import AscendBackend

pytestmark = pytest.mark.brute_force

H2D, D2H = "ACL_MEMCPY_HOST_TO_DEVICE", "ACL_MEMCPY_DEVICE_TO_HOST"
PATIENCE = 60
"""Seconds after which a test that waits has failed."""


class _Told:
    """A lock that reports when a thread tries to acquire it."""

    def __init__(self, lock):
        self._lock = lock
        self.asked = Event()

    def acquire(self, timeout=-1):
        self.asked.set()
        return self._lock.acquire(timeout=timeout)

    def release(self):
        self._lock.release()


@pytest.fixture
def open_set(encoder_dir):
    """A function: an engine of the encoder with a buffer set of the one executor."""
    with ExitStack() as stack:

        def open_engine(buffers, device=0):
            place = AscendBackend(device, buffers=buffers)
            stack.callback(place.close)
            artifact = Artifact(encoder_dir / "model.om", "om", "")
            engine = place.open([artifact], threads=1, outputs=("embedding",))
            stack.callback(engine.close)
            engine.bind([], place.memory)
            engine.place = place
            return engine

        yield open_engine


@pytest.fixture
def sets(open_set):
    """Two engines that share one executor."""
    return open_set(0), open_set(1)


def batch(engine, seed):
    """Inputs in the engine's memory, a place for the result, and the result as it should be."""
    inputs, expected = token_batch(4, 8, seed)
    given = {name: pinned(engine.place, array) for name, array in inputs.items()}
    return given, {"embedding": pinned(engine.place, np.zeros_like(expected))}, expected


def run(engine, seed=0):
    inputs, outputs, expected = batch(engine, seed)
    engine.run(inputs, outputs)
    np.testing.assert_allclose(outputs["embedding"], expected, rtol=1e-5)
    return True


class Held:
    """The lock of an executor's computation, held until `release`."""

    def __init__(self, executor):
        self._gate = Event()
        with executor._context.current():
            stream = current().stream(executor._stream, "test")
            stream.submit(Task(self._wait, (), (), "held"))
        self.next = executor._computing = _Told(executor._computing)

    def _wait(self):
        assert self._gate.wait(PATIENCE)

    def release(self):
        self._gate.set()


def test_inputs_are_copied_while_another_execution_computes(machine, open_set):
    machine.start(timeline=100)
    first, second = open_set(0), open_set(1)
    executor = first._executor
    assert executor is second._executor
    held = Held(executor)
    before = len(machine.report.timeline)
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(run, first, 1)
        assert held.next.asked.wait(PATIENCE)
        held.next.asked.clear()
        two = threads.submit(run, second, 2)
        assert held.next.asked.wait(PATIENCE)
        with executor._context.current():
            for own in executor._sets[1:]:  # the first waits for the computing
                current().stream(own.copies.stream, "test").wait()
        held.release()
        assert one.result()
        assert two.result()
    spans = machine.report.timeline[before:]
    computed = [span for span in spans if span.kind == "execute"]
    assert len(computed) == 2
    assert len({span.stream for span in computed}) == 1
    assert [span.kind for span in spans].count(H2D) == 4
    copied = {kind: {s.stream for s in spans if s.kind == kind} for kind in (H2D, D2H)}
    assert copied[H2D] == copied[D2H]  # each set's own stream
    assert len(copied[H2D]) == 2
    assert max(s.end_ns for s in spans if s.kind == H2D) <= min(s.begin_ns for s in computed)


def test_a_second_set_takes_device_io_alone(open_set, machine):
    first = open_set(0)
    before = machine.used("device")
    second = open_set(1)
    assert machine.used("device") - before == second.device_io_bytes()
    assert run(first)
    assert run(second)


def test_nothing_is_allocated_while_both_serve(sets, machine):
    batches = [batch(engine, seed) for seed, engine in enumerate(sets)]
    freeze()

    def both():
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda own: own[0].run(*own[1][:2]), zip(sets, batches, strict=True)))
        for _, outputs, expected in batches:
            np.testing.assert_allclose(outputs["embedding"], expected, rtol=1e-5)
            outputs["embedding"][...] = 0

    both()
    events = machine.report.calls["rt.create_event_ex_with_flag"]
    assert_allocates_nothing(machine, both, 50)
    assert machine.report.calls["rt.create_event_ex_with_flag"] == events == 4


@pytest.mark.parametrize("place", ["execute@1", "copy@1", "copy@3"])
def test_a_failure_is_that_of_its_execution_and_the_other_is_executed(sets, machine, place):
    machine.arm(f"{place}=507015")
    # Where it was a copy of inputs, the execution of what was there before may fail first.
    with pytest.raises(EngineFault, match=r"5070\d\d"):
        run(sets[0])
    assert run(sets[1])
    assert run(sets[0])


def test_an_execution_that_copied_before_another_failed_runs_after_the_reset(sets, machine):
    first, second = sets
    executor = first._executor
    held = Held(executor)
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(run, first, 1)
        assert held.next.asked.wait(PATIENCE)
        held.next.asked.clear()
        two = threads.submit(run, second, 2)
        assert held.next.asked.wait(PATIENCE)
        machine.arm("execute@1=507015")
        held.release()
        with pytest.raises(EngineFault, match="507015"):
            one.result()
        assert two.result()
    assert machine.report.calls["mdl.load_from_file_with_mem"] == 2  # the reset loads it again


def test_a_queue_that_is_full_for_a_moment_is_tried_again(sets, machine, monkeypatch):
    driver = type(sets[0]._card.driver)
    for call in ("copy_async", "execute_async", "record_event", "stream_wait_event"):
        real, tries = getattr(driver, call), []

        def full_once(*given, real=real, tries=tries, call=call):
            tries.append(call)
            if len(tries) == 2:
                raise DriverFault(f"acl.rt.{call}", 507002, "")
            return real(*given)

        with monkeypatch.context() as patch:
            patch.setattr(driver, call, full_once)
            assert run(sets[1]), call
            assert run(sets[0]), call


def test_a_lost_card_is_lost_for_both(sets, machine):
    machine.arm("execute@1=lost")
    with pytest.raises(EngineLost):
        run(sets[1])
    with pytest.raises(EngineLost):
        run(sets[0])
    assert all(engine.lost for engine in sets)


def test_a_set_that_cannot_be_created_changes_nothing(machine, open_set):
    # The context's and the model's stream, and the executor's own: of the two for copies one fits.
    machine.start(streams=5)
    first = open_set(0)
    with pytest.raises(Exception, match="207008"):
        open_set(1)
    assert run(first)
    assert first._executor.locks == first._card._execution_locks


# -- by config.pbtxt ------------------------------------------------------------------------------


def test_a_model_with_two_sets_serves_on_both(encoder_dir, machine):
    config = on_card(encoder_config({"io_buffers": "2"}))
    runtime = Runtime.open(encoder_dir, config, instance_name="encoder_0")
    assert len({executor.engine._executor for executor in runtime._parts.executors}) == 1
    before = machine.report.mallocs
    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(lambda seed: right(runtime, seed=seed), range(20)))
    assert machine.report.mallocs == before
    assert runtime.gauges()["allocations_after_freeze"] == 0
    reported = "copies overlap with executions: 2 buffer sets of "
    assert any(reported in line for line in runtime.report)
    plan, usage = runtime.plan, runtime.memory_usage()
    on_card_bytes = [own["byte_size"] for own in usage if own["type"] == "NPU"]
    assert on_card_bytes[1] == plan.device_io_bytes
    assert sum(on_card_bytes) == machine.used("device")
    runtime.close()


def test_without_the_plan_says_what_overlap_would_cost(encoder_dir):
    config = on_card(encoder_config())
    runtime = Runtime.open(encoder_dir, config, instance_name="encoder_0")
    plan = runtime.plan
    once = f"{plan.device_io_bytes:,} bytes of the card and {plan.io_bytes:,} of pinned memory"
    assert f"encoder_0:   io_buffers: 2 would take {once} more" in runtime.report
    workspace = f"{plan.workspace_bytes:,} of workspace on the card"
    assert f"encoder_0:   a second executor would also take {workspace}" in runtime.report
    runtime.infer([text(1, 2)])
    runtime.close()


def test_places_are_executors_with_their_sets():
    config = on_card(encoder_config({"io_buffers": "2", "devices": "npu:0, npu:1, npu:0"}))
    places = RuntimeConfig.parse(config, cores=1).places
    assert [tuple(place) for place in places] == [
        ("npu:0", 0, 0),
        ("npu:0", 0, 1),
        ("npu:1", 0, 0),
        ("npu:1", 0, 1),
        ("npu:0", 1, 0),
        ("npu:0", 1, 1),
    ]


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"io_buffers": "0"}, "found '0', expected a whole number of at least 1"),
        ({"io_buffers": "5"}, "found '5', expected at most 4"),
        ({"io_buffers": "2", "engine": "ge_session"}, "found 2 for engine ge_session on npu:0"),
        ({"io_buffers": "2", "placement": "service"}, "expected 1 with placement: service"),
    ],
)
def test_sets_that_cannot_be_are_refused(parameters, found):
    with pytest.raises(ConfigFault, match=found):
        RuntimeConfig.parse(on_card(encoder_config(parameters)), cores=1)


def test_sessions_of_ge_have_none(tmp_path):
    place = AscendBackend(0, buffers=1, workspace_bytes=2**20)
    with pytest.raises(PlanFault, match="found io_buffers, expected none"):
        place.open([Artifact(tmp_path / "model.air", "ge_session", "")], threads=1, outputs=())
    place.close()
