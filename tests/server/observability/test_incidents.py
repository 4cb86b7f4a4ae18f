"""Incidents, delays of the event loop, and long executions of inline models."""

import builtins
import logging
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from server.backends import kit
from support.servers import ROOT

from reference_server.backends.python_host.inline import InlineInstance
from reference_server.core.telemetry import Sample
from reference_server.observability.incidents import ExecutionWatch, Incidents, LoopLag
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.testing import open_repository


class Timers:
    """The clock and timers of an event loop."""

    def __init__(self):
        self.now_s, self.due = 50.0, None

    def time(self):
        return self.now_s

    def call_later(self, delay, callback):
        self.due = self.now_s + delay, callback
        return self

    def cancel(self):
        self.due = None

    def tick(self, lag_s=0.0):
        due_s, callback = self.due
        self.now_s = due_s + lag_s
        callback()


@pytest.fixture
def timers():
    return Timers()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "reference_server")
    found = []

    class Lines(logging.Handler):
        def emit(self, record):
            found.append(record.getMessage())

    handler = Lines()
    logger = logging.getLogger("reference_server")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


@pytest.fixture
def incidents(timers):
    return Incidents(timers.time)


def test_incidents_are_counted_by_protocol_and_reason(incidents):
    for protocol, reason in (("http", "idle"), ("http", "idle"), ("grpc", "idle"), ("grpc", "x")):
        incidents.of(protocol)(reason, "")
    assert {sample.labels: sample.value for sample in incidents.samples()} == {
        (("protocol", "http"), ("reason", "idle")): 2,
        (("protocol", "grpc"), ("reason", "idle")): 1,
        (("protocol", "grpc"), ("reason", "x")): 1,
    }


def test_a_reason_is_logged_at_once_and_then_once_a_minute_with_the_number_since(
    incidents, timers, lines
):
    for number in range(1000):
        incidents.count("http", "head", f"number {number}")
    assert lines.pop() == "http connections ended, head: number 0"
    timers.now_s += 59.9
    incidents.log_pending()
    assert not lines
    timers.now_s += 0.1
    incidents.log_pending()
    assert lines.pop() == "http connections ended, head: 999 times, the last: number 999"
    timers.now_s += 60
    incidents.log_pending()
    assert not lines


def read(lag):
    return {name: samples[0].value for name, samples in lag.samples().items()}


def test_delays_are_added_up_and_the_greatest_is_dropped_after_a_minute(timers):
    ticks = []
    lag = LoopLag(lambda: ticks.append(timers.now_s), lambda since_s: "")
    lag.start(timers)
    for late_s in (0.0, 0.05, 0.01):
        timers.tick(late_s)
    found = read(lag)
    assert found["ge_server_loop_ticks_total"] == len(ticks) == 3
    assert found["ge_server_loop_lag_seconds_total"] == pytest.approx(0.06)
    assert found["ge_server_loop_lag_greatest_seconds"] == pytest.approx(0.05)
    timers.tick(30.0)
    timers.tick()
    assert read(lag)["ge_server_loop_lag_greatest_seconds"] == pytest.approx(30.0)
    for _ in range(601):
        timers.tick()
    assert read(lag)["ge_server_loop_lag_greatest_seconds"] == pytest.approx(0, abs=1e-6)
    lag.stop()
    assert timers.due is None


def test_a_late_loop_is_logged_once_a_minute_with_the_greatest_delay(timers, lines):
    lag = LoopLag(lambda: None, lambda since_s: f"'m' for {since_s:.1f} s" if since_s > 5 else "")
    lag.start(timers)
    timers.tick(0.09)
    assert not lines
    timers.tick(0.2)
    assert "late by 200 ms" in lines[0]
    assert lines.pop().endswith("or a busy processor blocked it.")
    timers.tick(7.0)
    timers.tick(1.0)
    assert not lines
    for _ in range(600):
        timers.tick()
    (line,) = lines
    assert "late by 7000 ms" in line
    assert line.endswith("Inline models that executed during this time: 'm' for 7.0 s")


@pytest.mark.parametrize(("version", "shown"), [("2.51", False), ("newest", True)])
def test_the_page_of_2_51_has_only_tritons_families(tmp_path, version, shown):
    with open_repository(tmp_path, options=[f"--triton-version={version}"]) as server:
        page = server.metrics()
    assert ("ge_server_loop_ticks_total 0" in page) is shown
    assert ("ge_server" in page) is shown


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


def test_nothing_is_logged_without_a_limit(instance, gate, clock, caplog):
    watch = ExecutionWatch(clock, 0, InlineInstance._run.__code__)
    watch._instances.add(instance._running)
    with executing(instance, gate):
        clock.now_ns += 100 * LIMIT_NS
        watch.look()
    assert not caplog.messages
