"""The scheduler and the idle limit of a service, with a manual clock."""

import math

import pytest
from runtime.support.threads import Beside

from ge_runtime.errors import Cancelled, EngineLost, Expired
from ge_runtime.npu.service.fair_scheduler import FairScheduler, QueueEntry
from ge_runtime.npu.service.server import IdleTimeout
from ge_runtime.testing import ManualClock


def test_an_entry_starts_when_the_previous_one_ends():
    clock = ManualClock()
    scheduler = FairScheduler(1, clock)
    first, second = QueueEntry("a", what="encoder_0 of encoder/1/model.onnx"), QueueEntry("b")
    scheduler.enter(first)
    waiting = Beside(scheduler.enter, second)
    clock.until_waiting(1)
    assert scheduler.stats().waiting == 1
    clock.advance(2.0)
    assert scheduler.overdue(2.0) is None
    assert scheduler.overdue(1.9) == "encoder_0 of encoder/1/model.onnx"
    scheduler.leave(first, 2.0)
    waiting.result()
    scheduler.leave(second, 0.5)
    stats = scheduler.stats()
    assert (stats.begun, stats.waited, stats.wait_s, stats.longest_wait_s) == (2, 1, 2.0, 2.0)
    assert (stats.running, stats.waiting, stats.free) == (0, 0, 1)
    assert scheduler.overdue(0.0) is None


def test_deadline_ends_the_waiting():
    clock = ManualClock()
    scheduler = FairScheduler(1, clock)
    scheduler.enter(QueueEntry("a"))
    late = Beside(scheduler.enter, QueueEntry("b", deadline=3.0))
    clock.until_waiting(1)
    clock.advance(3.0)
    with pytest.raises(Expired):
        late.result()
    assert (scheduler.stats().expired, scheduler.stats().waiting) == (1, 0)


def test_cancelled_ticket_stops_waiting_and_others_move_up():
    clock = ManualClock()
    scheduler = FairScheduler(1, clock)
    running, leaving, staying = QueueEntry("a"), QueueEntry("b"), QueueEntry("c")
    scheduler.enter(running)
    left, stayed = Beside(scheduler.enter, leaving), Beside(scheduler.enter, staying)
    clock.until_waiting(2)
    scheduler.cancel(leaving)
    with pytest.raises(Cancelled):
        left.result()
    scheduler.leave(running, 1.0)
    stayed.result()
    assert scheduler.stats().cancelled == 1


def test_close_refuses_waiting_and_new_entries_and_waits_for_running_ones():
    clock = ManualClock()
    scheduler = FairScheduler(1, clock)
    running = QueueEntry("a")
    scheduler.enter(running)
    waiting = Beside(scheduler.enter, QueueEntry("b"))
    clock.until_waiting(1)
    closing = Beside(scheduler.close, 5.0)
    with pytest.raises(EngineLost, match="the device service ends"):
        waiting.result()
    with pytest.raises(EngineLost):
        scheduler.enter(QueueEntry("c"))
    clock.until_waiting(1)
    scheduler.leave(running, 1.0)
    closing.result()


def test_close_waits_for_a_limited_time():
    clock = ManualClock()
    scheduler = FairScheduler(1, clock)
    scheduler.enter(QueueEntry("a"))
    closing = Beside(scheduler.close, 5.0)
    clock.until_waiting(1)
    clock.advance(5.0)
    closing.result()


def test_a_service_without_clients_ends():
    assert IdleTimeout(10.0, now=5.0).ends_at == 15.0


def test_grace_begins_when_the_last_client_has_left():
    idle = IdleTimeout(10.0, now=0.0)
    idle.note(2, 1.0)
    assert idle.ends_at == math.inf
    idle.note(1, 2.0)
    assert idle.ends_at == math.inf
    idle.note(0, 3.0)
    idle.note(0, 9.0)
    assert idle.ends_at == 13.0


def test_client_that_comes_within_the_grace_ends_it():
    idle = IdleTimeout(10.0, now=0.0)
    idle.note(0, 1.0)
    idle.note(1, 9.9)
    assert idle.ends_at == math.inf
