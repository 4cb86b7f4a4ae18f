"""Long executions of inline models are logged once, with their stack."""

import builtins
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from server.backends import kit
from support.servers import ROOT

from reference_server.backends.python_host.inline import InlineInstance
from reference_server.core.telemetry import Sample
from reference_server.observability.incidents import ExecutionWatch
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.testing import open_repository

LIMIT_NS = 2_000_000_000
MODEL = kit.executing(
    "def wait():",
    "    gate.begun.set()",
    "    gate.ends.wait()",
    "wait()",
    "return [pb_utils.InferenceResponse([]) for _ in requests]",
)


class Clock:
    now_ns = 7_000_000_000

    def monotonic_ns(self):
        return self.now_ns


class Gate:
    """The event that the model waits for."""

    def __init__(self):
        self.begun, self.ends = threading.Event(), threading.Event()


@pytest.fixture
def gate(monkeypatch):
    monkeypatch.setattr(builtins, "gate", gate := Gate(), raising=False)
    return gate


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(clock):
    return ExecutionWatch(clock, LIMIT_NS / 1e9, InlineInstance._run.__code__)


@pytest.fixture
def instance(tmp_path, gate, clock, watch):
    spec = kit.spec(kit.model_file(tmp_path, MODEL))
    running = watch.new(spec.name, spec.model_name, spec.model_version)
    instance = InlineInstance(spec, clock, MetricRegistry(), running=running)
    instance.open()
    yield instance
    instance.close()


@contextmanager
def executing(instance, gate):
    """A block during which the model waits in `execute`."""
    gate.begun.clear()
    gate.ends.clear()
    thread = threading.Thread(target=instance.execute, args=([kit.request()],))
    thread.start()
    assert gate.begun.wait(20)
    try:
        yield
    finally:
        gate.ends.set()
        thread.join()


def test_a_long_execution_is_logged_once_with_its_stack(instance, gate, clock, watch, caplog):
    with executing(instance, gate):
        clock.now_ns += LIMIT_NS
        watch.look()
        assert not caplog.messages
        clock.now_ns += 500_000_000
        watch.look()
        watch.look()
    (line,) = caplog.messages
    assert line.startswith("'m_0_0' has been executing for 2.5 s: at ")
    assert "/threading.py:" in line
    assert line.endswith("/m/1/model.py:10 in execute")
    assert "model.py:9 in wait, called by" in line
    (sample,) = watch.samples()
    assert sample == Sample((("model", "m"), ("version", "1")), 1)


def test_the_next_long_execution_is_logged_again(instance, gate, clock, watch, caplog):
    for _ in range(2):
        clock.now_ns += 1
        with executing(instance, gate):
            clock.now_ns += 2 * LIMIT_NS
            watch.look()
        clock.now_ns += 2 * LIMIT_NS
        watch.look()
    assert len(caplog.messages) == 2
    assert watch.samples()[0].value == 2


def test_nothing_is_logged_without_a_limit(instance, gate, clock, caplog):
    watch = ExecutionWatch(clock, 0, InlineInstance._run.__code__)
    watch._instances.add(instance._running)
    with executing(instance, gate):
        clock.now_ns += 100 * LIMIT_NS
        watch.look()
    assert not caplog.messages


def test_instances_that_executed_for_most_of_a_time_are_reported_afterwards(
    instance, gate, clock, watch
):
    assert watch.executing_since(1.0) == ""
    with executing(instance, gate):
        clock.now_ns += 800_000_000
        assert watch.executing_since(1.0).startswith("'m_0_0', at ")
    assert watch.executing_since(1.0) == "'m_0_0'"
    clock.now_ns += 500_000_000
    assert watch.executing_since(1.0) == ""


COLLECTING = """
import faulthandler, gc, os, threading
from reference_server.observability.incidents import ExecutionWatch

faulthandler.dump_traceback_later(20, exit=True)
watch = ExecutionWatch(None, 0, None)

def start_a_thread(phase, details):
    threading.Thread(target=int).start()

held = threading.Lock()
held.acquire()
for _ in range(5):  # their frames are objects only once somebody asks for them
    threading.Thread(target=held.acquire, daemon=True).start()
gc.collect()
gc.set_threshold(1)
gc.callbacks.append(start_a_thread)
watch._frames()
os._exit(0)
"""


def test_no_garbage_is_collected_while_stacks_are_read():
    # In CPython 3.11.7 a thread that a finalizer starts there never starts: the process hangs.
    finished = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr.decode()


def test_a_record_is_watched_until_it_is_freed(watch):
    running = watch.new("m_0_0", "m", 1)
    assert watch._all() == [running]
    del running
    assert watch._all() == []


CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
"""


@pytest.mark.parametrize(("version", "shown"), [("2.51", False), ("newest", True)])
def test_a_server_watches_its_inline_models(tmp_path, gate, caplog, version, shown):
    file = kit.model_file(tmp_path, MODEL)
    (file.parents[1] / "config.pbtxt").write_text(CONFIG)
    options = [f"--triton-version={version}", "--execution-warning-secs=1e-9"]
    with open_repository(tmp_path, options=options) as server:
        stream = server.model("m").stream({"X": [1.0]})
        assert gate.begun.wait(20)
        server._server._run_periodic_work()
        gate.ends.set()
        stream.single()
        assert "model.py:9 in wait, called by" in caplog.text
        counted = 'ge_server_long_executions_total{model="m",version="1"} 1'
        assert (counted in server.metrics()) is shown
