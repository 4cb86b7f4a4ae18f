"""Tests of instances on both hosts: `is_ready`, and outputs with a configured `reshape`."""

import threading

import numpy as np
import pytest
from server.backends import kit
from server.backends.process.watching import await_end
from server.support.instances import Answering
from server.support.requests import PATIENCE_S, Answers, a_request, array_tensor, signature

from reference_server.backends.hosts import PythonHosts
from reference_server.backends.instances import Readiness, with_reshaped_outputs
from reference_server.backends.python_host.api.server_access import NO_CALLS
from reference_server.core.errors import Code
from reference_server.core.health import Health
from reference_server.core.ports import SystemClock
from reference_server.core.request import Execution, InferResponse
from reference_server.core.tensor import DataType
from reference_server.observability.metric_registry import MetricRegistry

#: Says what stands in place of the braces; executes while a file is away.
REPLYING = """
import asyncio
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils

async def agree():
    await asyncio.sleep(0)
    return True

class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        (self.folder / "begun").touch()
        while not (self.folder / "go").exists():
            time.sleep(0.005)
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def is_ready(self):
        {}
"""


@pytest.fixture(params=["inline", "process"])
def open_telling(request, tmp_path):
    """A function that opens a model whose `is_ready` is a line; returns it and its health."""
    hosts = PythonHosts({}, SystemClock(), MetricRegistry())
    opened = []

    def open_one(line, source=REPLYING):
        health = Health()
        spec = kit.spec(kit.model_file(tmp_path, source.format(line)))
        instance = hosts.instance(spec, NO_CALLS, request.param, health)
        instance.open()
        opened.append(instance)
        return instance, health

    yield open_one
    for instance in opened:
        instance.close()


@pytest.mark.brute_force
def test_a_model_without_is_ready_has_no_probe(open_telling):
    _, health = open_telling("", "class TritonPythonModel: {}pass")
    assert health.probes == ()


@pytest.mark.brute_force
def test_only_true_is_ready_and_a_failure_is_logged(open_telling, caplog):
    _, health = open_telling(
        "self.turn = getattr(self, 'turn', -1) + 1\n"
        "        return [lambda: True, lambda: False, agree, lambda: 1, lambda: None,\n"
        "                lambda: 1 / 0, lambda: exec('raise SystemExit')][self.turn]()"
    )
    (ask,) = health.probes
    assert [ask() for _ in range(7)] == [True, False, True, False, False, False, False]
    reason = "'m_0_0': is_ready failed: ZeroDivisionError: division by zero\n\nAt:\n"
    assert caplog.messages[-2].startswith(reason)


@pytest.mark.brute_force
def test_is_ready_runs_beside_execute(open_telling, tmp_path):
    instance, health = open_telling("return (self.folder / 'begun').exists()")
    (ask,) = health.probes
    assert not ask()
    executing = threading.Thread(target=instance.execute, args=([kit.request()],))
    executing.start()
    while not ask():  # it has not begun
        assert executing.is_alive()
    (tmp_path / "m" / "go").touch()
    executing.join()


@pytest.mark.brute_force
def test_a_closed_instance_is_not_ready(open_telling, caplog):
    instance, health = open_telling("return True")
    (ask,) = health.probes
    instance.close()
    assert not ask()
    assert caplog.messages == []


@pytest.mark.brute_force
def test_a_process_that_dies_in_is_ready_is_not_ready(tmp_path):
    hosts = PythonHosts({"stub-restart": "false"}, SystemClock(), MetricRegistry())
    health = Health()
    spec = kit.spec(kit.model_file(tmp_path, REPLYING.format("import os; os._exit(3)")))
    instance = hosts.instance(spec, NO_CALLS, "process", health)
    instance.open()
    pid = instance.pid
    (ask,) = health.probes
    assert not ask()
    await_end(pid)
    assert not ask()
    instance.close()


# ------------------------------------------------------------------------------------- the limit


def test_an_is_ready_that_never_returns_means_not_ready(caplog):
    may_say = threading.Event()
    ready = Readiness("m_0", lambda: may_say.wait(PATIENCE_S), limit_s=0.01)
    assert not ready()
    assert caplog.messages == ["'m_0': is_ready did not return within 0.01 s"]
    may_say.set()


def test_concurrent_probes_share_one_call():
    is_asked, may_say = threading.Event(), threading.Event()
    asked = []

    def ask():
        asked.append(threading.current_thread())
        is_asked.set()
        return may_say.wait(PATIENCE_S)

    ready = Readiness("m_0", ask, limit_s=0.01)
    assert not ready()
    is_asked.wait()
    assert not ready()
    assert len(asked) == 1
    may_say.set()
    asked[0].join()
    ready._limit_s = PATIENCE_S
    assert ready()
    assert len(asked) == 2


def test_a_defect_means_not_ready(caplog):
    ready = Readiness("m_0", lambda: 1 / 0)
    assert not ready()
    assert not ready()
    assert caplog.messages == ["'m_0': is_ready could not be called"] * 2


SIGNATURE = signature(
    outputs={"Y": (DataType.FP32, [4], {"reshape": (2, 2)}), "Z": (DataType.FP32, [-1])}
)


def response(*, shape=(2, 2), **fields):
    made = np.zeros(shape, np.float32)
    return InferResponse("m", 1, "", [array_tensor("Y", made), array_tensor("Z", made)], **fields)


@pytest.fixture
def asked():
    return a_request(sink=Answers())


def shapes(answered):
    return [tensor.shape for tensor in answered.outputs]


def test_returned_responses_are_reshaped(asked):
    instance = with_reshaped_outputs(
        Answering(lambda requests: Execution([response()], 0, 0)), SIGNATURE
    )
    (answered,) = instance.execute([asked]).responses
    assert shapes(answered) == [(4,), (2, 2)]


def test_sent_responses_are_reshaped(asked):
    sinks = []

    def execute(requests):
        sinks.append(requests[0].sink)
        sinks[0].send(response(final=False))
        return Execution([None], 0, 0)

    instance = with_reshaped_outputs(Answering(execute), SIGNATURE)
    answers = asked.sink
    instance.execute([asked])
    sinks[0].send(response())
    assert [shapes(answers.wait()) for _ in range(2)] == [[(4,), (2, 2)]] * 2


def test_a_rescheduled_request_is_reshaped_once(asked):
    seen = []

    def execute(requests):
        seen.append(requests[0].sink)
        return Execution([None], 0, 0, rescheduled=frozenset({0}))

    instance = with_reshaped_outputs(Answering(execute), SIGNATURE)
    answers = asked.sink
    for _ in range(2):
        instance.execute([asked])
        assert asked.sink is answers
    seen[1].send(response())
    assert shapes(answers.wait()) == [(4,), (2, 2)]
    assert answers.is_empty


def test_an_output_of_another_size_fails_its_request_only(asked):
    def execute(requests):
        requests[0].sink.send(response(shape=(3, 3), final=False))
        return Execution([response(shape=(3, 2)), response()], 0, 0)

    answers = asked.sink
    instance = with_reshaped_outputs(Answering(execute), SIGNATURE)
    returned, good = instance.execute([asked, a_request()]).responses
    for answered in (answers.wait(), returned):
        assert (answered.error.code, answered.error.message) == (
            Code.INTERNAL,
            "output tensor shape does not match size of output for 'Y'",
        )
        assert answered.outputs == ()
    assert shapes(good) == [(4,), (2, 2)]


def test_a_model_without_reshape_is_not_wrapped():
    instance = Answering(None)
    assert (
        with_reshaped_outputs(instance, signature(outputs={"Y": (DataType.FP32, [4])})) is instance
    )
