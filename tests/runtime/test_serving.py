"""A runtime with callers, devices and a workspace."""

import contextlib
import threading
import weakref

import numpy as np
import pytest
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, TABLE, encode

from ge_runtime import Caller, ConfigFault, EngineFault, EngineLost, Runtime
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import Expired, NeverFits, PlanFault, PoolTimeout
from ge_runtime.memory.arena import aligned_bytes
from ge_runtime.memory.machine import MemoryLimit
from ge_runtime.testing import ManualClock
from ge_runtime.workspace import PROCESS_POOLS

UNKNOWN_TOKEN = len(TABLE)
COST = "launch_us=100, element_ns=100, element2_ns=0"
BY_TOKENS = "launch_us=100, element_ns=10000000, element2_ns=0"
SLOW = "launch_us=20000, element_ns=100, element2_ns=0"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def opened(version_dir, clock):
    with contextlib.ExitStack() as stack:

        def open_runtime(parameters=None, limits=(), **more):
            own = {"cost": COST, "load_check": "off", **(parameters or {})}
            config = encoder_config(own, **more)
            runtime = Runtime.open(
                version_dir(ENCODER),
                config,
                instance_name="tiny_0",
                clock=clock,
                limits=lambda: limits,
            )
            stack.callback(runtime.close)
            return runtime

        yield open_runtime


def text(*tokens):
    return {"input_ids": np.array([tokens]), "lengths": np.array([[len(tokens)]], np.int32)}


def right(answer, *tokens):
    np.testing.assert_allclose(answer["embedding"], encode([tokens]), rtol=1e-5)
    return True


def at(address, tensor):
    """Return a copy of the tensor whose address is `address` modulo 64."""
    memory = aligned_bytes(tensor.nbytes + address)[address:]
    memory.view(tensor.dtype).reshape(tensor.shape)[...] = tensor
    return memory.view(tensor.dtype).reshape(tensor.shape)


def test_a_request_has_the_same_answer_copied_and_read_where_it_is(opened):
    runtime, request, answers, copied = opened(), text(*[1, 2, 3] * 6), [], []
    for address in (0, 16, 8):
        (answer,) = runtime.infer([{name: at(address, own) for name, own in request.items()}])
        answers.append(answer["embedding"].tobytes())
        copied.append(runtime.counts().copied_bytes)
    assert len(set(answers)) == 1
    # The generated mask is written each time, and the unaligned request is copied.
    assert copied[1] == 2 * copied[0]
    assert copied[2] - copied[1] >= copied[0] + request["input_ids"].nbytes


def test_no_tensor_of_a_request_is_kept_after_its_answer(opened):
    runtime, ids = opened(), at(0, np.array([[1, 2, 3]]))
    kept = weakref.ref(ids)
    runtime.infer([{"input_ids": ids, "lengths": np.array([[3]], np.int32)}])
    del ids
    assert kept() is None


# -- callers ---------------------------------------------------------------------------------


def test_an_expired_request_is_not_executed_and_others_are(opened, clock):
    runtime = opened()
    clock.advance(10.0)
    late, timely = Caller("late", deadline=9.0), Caller("timely", deadline=11.0)
    expired, answered = runtime.infer([text(1), text(2, 3)], [late, timely])
    assert isinstance(expired, Expired)
    assert str(expired).startswith("[request id: late] found a deadline that passed 1000.0 ms ago")
    assert right(answered, 2, 3)
    assert runtime.counts().departed == 1
    assert runtime.counts().useful_elements == 2


def test_the_time_to_a_lone_answer_is_counted(opened, clock):
    runtime = opened({"cost": SLOW})

    def is_cancelled():  # called within the request batch
        clock.advance(2.0)
        return False

    runtime.infer([text(1)], [Caller(is_cancelled=is_cancelled)])
    assert runtime.counts().answer_seconds == 2.0


def test_cancellation_is_not_polled_for_short_executions(opened):
    runtime = opened({"cost": "launch_us=1, element_ns=1, element2_ns=0"})
    (answer,) = runtime.infer([text(1)], [Caller(is_cancelled=lambda: pytest.fail("asked"))])
    assert right(answer, 1)


# -- engines ---------------------------------------------------------------------------------


class Hooks:
    def __init__(self):
        self.runs = 0
        self.before = lambda: None
        self.saw = lambda inputs: None
        self.lost = set()


@pytest.fixture
def engine(monkeypatch):
    """Hooks into every execution of every engine; `runs` counts them, with the warm-up."""
    hooks, run = Hooks(), OnnxEngine.run

    def hooked(self, inputs, outputs):
        hooks.runs += 1
        hooks.saw(inputs)
        try:
            hooks.before()
        except EngineLost:
            hooks.lost.add(self)
            raise
        return run(self, inputs, outputs)

    monkeypatch.setattr(OnnxEngine, "run", hooked)
    monkeypatch.setattr(OnnxEngine, "lost", property(lambda self: self in hooks.lost))
    return hooks


def test_a_lost_engine_fails_all_requests_and_readiness(opened, engine):
    runtime = opened()
    assert runtime.is_ready()

    def lose():
        raise EngineLost("the device is lost")

    engine.before = lose
    engine.runs = 0
    answers = runtime.infer([text(1), text(2)])
    assert all(isinstance(answer, EngineLost) for answer in answers)
    assert engine.runs == 1
    assert not runtime.is_ready()


def test_closing_waits_for_the_batch_in_progress(opened, engine):
    runtime = opened()
    running, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def pause():
        running.set()
        assert go_on.wait(30)

    engine.before = pause
    answers = []
    serving = threading.Thread(target=lambda: answers.extend(runtime.infer([text(1)])))
    closing = threading.Thread(target=lambda: (runtime.close(), closed.set()))
    serving.start()
    assert running.wait(30)
    closing.start()
    while runtime.is_ready():  # until closing has begun
        assert closing.is_alive()
    assert not closed.is_set()
    go_on.set()
    serving.join(30)
    closing.join(30)
    assert closed.is_set()
    assert right(answers[0], 1)


# -- early answers ---------------------------------------------------------------------------


def test_answers_are_sent_with_their_execution_the_shortest_first(opened, engine):
    runtime, answered, seen = opened({"cost": BY_TOKENS}, batch=1), {}, []
    engine.before = lambda: seen.append(list(answered))
    requests = [text(4), text(1, 2, 3), text(UNKNOWN_TOKEN, 1), text(5, 6, 7, 8)]
    answers = runtime.infer(requests, on_answer=answered.__setitem__)
    # The longest is executed last, and answered with the batch.
    assert seen == [[], [0], [0, 2], [0, 2, 1]]
    assert all(answered[place] is answers[place] for place in answered)
    assert right(answers[3], 5, 6, 7, 8)
    assert isinstance(answered[2], EngineFault)
    assert runtime.counts().early_answers == 3


def test_early_answers_of_two_executors_are_sent_on_the_callers_thread(opened):
    runtime, answered = opened({"devices": "cpu, cpu", "cost": SLOW}, batch=1), {}

    def on_answer(place, answer):
        assert threading.current_thread() is threading.main_thread()
        answered[place] = answer

    answers = runtime.infer(
        [text(*[token] * (1 + token)) for token in range(8)], on_answer=on_answer
    )
    assert all(right(answer, *[token] * (1 + token)) for token, answer in enumerate(answers))
    assert 0 < len(answered) < 8


# -- devices ---------------------------------------------------------------------------------


def test_two_executors_share_a_batch(opened, engine):
    runtime = opened({"devices": "cpu, cpu"}, batch=4)
    together = threading.Barrier(2, timeout=30)
    engine.before = together.wait
    answers = runtime.infer([text(*[token] * 3) for token in range(8)])
    assert all(right(answer, *[token] * 3) for token, answer in enumerate(answers))
    assert runtime.counts().launches == 2


def test_an_executor_with_a_lost_engine_gets_no_work(opened, engine):
    runtime = opened({"devices": "cpu, cpu"}, batch=1)

    def lose():
        if "executor-0" in threading.current_thread().name:
            raise EngineLost("the device is lost")

    engine.before = lose
    answers = runtime.infer([text(1), text(2)])
    assert sorted(type(answer).__name__ for answer in answers) == ["EngineLost", "dict"]
    answers = runtime.infer([text(token) for token in range(8)])
    assert all(right(answer, token) for token, answer in enumerate(answers))
    assert not runtime.is_ready()


def test_nothing_is_allocated_while_serving(opened):
    runtime = opened()
    for count in range(1, 9):
        runtime.infer([text(*range(1, 2 + token)) for token in range(count)])
    assert runtime.gauges()["allocations_after_freeze"] == 0
    assert runtime.counts().answers_spilled == 0


def test_a_plan_larger_than_the_machines_memory_is_refused(opened):
    def ram(free_bytes):
        return [MemoryLimit("RAM", 2**30, free_bytes, "/proc/meminfo")]

    plan = opened(limits=ram(2**30)).plan
    to_come = plan.workspace_bytes + plan.io_bytes
    # The memory of an execution is measured, and may differ by some pages the next time.
    enough = to_come * 3 // 2
    opened(limits=ram(enough))
    with pytest.raises(PlanFault, match="the free part of RAM"):
        opened(limits=ram(to_come // 2))
    with pytest.raises(PlanFault, match="the free part of RAM"):
        opened({"devices": "cpu, cpu"}, limits=ram(enough))


# -- workspace -------------------------------------------------------------------------------


def test_a_model_whose_workspace_exceeds_the_pool_is_refused_at_load(opened):
    with pytest.raises(NeverFits, match="encoder"):
        opened({"workspace_pool_mib": "1", "limit.tokens": "4096"}, batch=512)


def test_a_pool_needs_a_known_workspace(opened, monkeypatch):
    monkeypatch.setattr(OnnxEngine, "intermediates", lambda self, shapes: None)
    with pytest.raises(ConfigFault, match="whose workspace cannot be computed"):
        opened({"workspace_pool_mib": "1"})
    assert opened().is_ready()


def test_executions_wait_for_workspace_of_other_models(opened):
    runtime = opened({"workspace_pool_mib": "1"})
    membership = PROCESS_POOLS.join("cpu", 2**20, "another")
    answers = []
    with membership.pool.lease(2**20, owner="another"):
        serving = threading.Thread(target=lambda: answers.extend(runtime.infer([text(1)])))
        serving.start()
        while not membership.pool.stats().waiting:
            assert serving.is_alive()
    serving.join(30)
    membership.leave()
    assert right(answers[0], 1)
    assert runtime.counts().workspace_waits == 1


def test_a_deadline_may_pass_while_waiting_for_workspace(opened):
    runtime = opened({"workspace_pool_mib": "1"})
    membership = PROCESS_POOLS.join("cpu", 2**20, "another")
    with membership.pool.lease(2**20, owner="another"):
        (fault,) = runtime.infer([text(1)], [Caller("x", deadline=1e-9)])
    membership.leave()
    assert isinstance(fault, PoolTimeout)
    assert str(fault).startswith("[request id: x] ")
