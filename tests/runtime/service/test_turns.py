import pytest
from runtime.support.threads import Beside

from ge_runtime.errors import Cancelled, EngineLost, Expired
from ge_runtime.service.fair import Ticket
from ge_runtime.service.turns import Turns
from ge_runtime.testing.clock import ManualClock


def test_turn_comes_when_the_one_before_leaves():
    clock = ManualClock()
    turns = Turns(1, clock)
    first, second = Ticket("a", what="encoder_0 of encoder/1/model.onnx"), Ticket("b")
    turns.enter(first)
    waiting = Beside(turns.enter, second)
    clock.until_waiting(1)
    assert turns.stats().waiting == 1
    clock.advance(2.0)
    assert turns.overdue(2.0) is None
    assert turns.overdue(1.9) == "encoder_0 of encoder/1/model.onnx"
    turns.leave(first, 2.0)
    waiting.result()
    turns.leave(second, 0.5)
    stats = turns.stats()
    assert (stats.begun, stats.waited, stats.wait_s, stats.longest_wait_s) == (2, 1, 2.0, 2.0)
    assert (stats.running, stats.waiting, stats.free) == (0, 0, 1)
    assert turns.overdue(0.0) is None


def test_deadline_ends_the_waiting():
    clock = ManualClock()
    turns = Turns(1, clock)
    turns.enter(Ticket("a"))
    late = Beside(turns.enter, Ticket("b", deadline=3.0))
    clock.until_waiting(1)
    clock.advance(3.0)
    with pytest.raises(Expired):
        late.result()
    assert (turns.stats().expired, turns.stats().waiting) == (1, 0)


def test_deadline_that_has_passed_is_no_turn():
    clock = ManualClock(5.0)
    with pytest.raises(Expired):
        Turns(1, clock).enter(Ticket("a", deadline=5.0))


def test_cancelled_ticket_stops_waiting_and_others_move_up():
    clock = ManualClock()
    turns = Turns(1, clock)
    running, leaving, staying = Ticket("a"), Ticket("b"), Ticket("c")
    turns.enter(running)
    left, stayed = Beside(turns.enter, leaving), Beside(turns.enter, staying)
    clock.until_waiting(2)
    turns.cancel(leaving)
    with pytest.raises(Cancelled):
        left.result()
    turns.leave(running, 1.0)
    stayed.result()
    assert turns.stats().cancelled == 1


def test_close_refuses_who_waits_and_who_comes_and_awaits_who_runs():
    clock = ManualClock()
    turns = Turns(1, clock)
    running = Ticket("a")
    turns.enter(running)
    waiting = Beside(turns.enter, Ticket("b"))
    clock.until_waiting(1)
    closing = Beside(turns.close, 5.0)
    with pytest.raises(EngineLost, match="the device service ends"):
        waiting.result()
    with pytest.raises(EngineLost):
        turns.enter(Ticket("c"))
    clock.until_waiting(1)
    turns.leave(running, 1.0)
    closing.result()


def test_close_awaits_nobody_for_ever():
    clock = ManualClock()
    turns = Turns(1, clock)
    turns.enter(Ticket("a"))
    closing = Beside(turns.close, 5.0)
    clock.until_waiting(1)
    clock.advance(5.0)
    closing.result()
