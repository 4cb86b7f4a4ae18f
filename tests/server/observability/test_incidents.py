"""Incidents are counted and logged once a minute; delays of the event loop are measured."""

import logging

import pytest

from reference_server.observability.incidents import Incidents, LoopLag
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


def test_reasons_are_logged_independently(incidents, lines):
    incidents.count("http", "head", "a")
    incidents.count("http", "body", "b")
    incidents.count("grpc", "head", "c")
    assert len(lines) == 3


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
