"""Tests of models with `is_ready`, on both hosts."""

import threading

import pytest
from server.backends import kit
from server.backends.process.watching import await_end
from server.support.requests import PATIENCE_S

from reference_server.backends.hosts import PythonHosts
from reference_server.backends.instances import Readiness
from reference_server.backends.python_host.api.server_access import NO_CALLS
from reference_server.core.health import Health
from reference_server.core.ports import SystemClock
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
