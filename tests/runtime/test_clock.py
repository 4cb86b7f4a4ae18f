import math
import threading

import pytest

from ge_runtime import testing as manual
from ge_runtime.clock import SystemClock
from ge_runtime.testing import ManualClock


class Waiter:
    """A thread that waits on a clock, and records the time when it wakes."""

    def __init__(self, clock, until):
        self.condition = threading.Condition()
        self.woken_at = None
        self._clock, self._until = clock, until
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self):
        with self.condition:
            self._clock.wait(self.condition, self._until)
            self.woken_at = self._clock.now()

    def is_alive(self):
        return self._thread.is_alive()

    def joined(self):
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.woken_at


@pytest.mark.parametrize("after", [-math.inf, -1.0, 0.001])
def test_waiting_on_the_system_clock_ends_at_the_deadline(after):
    clock, condition = SystemClock(), threading.Condition()
    until = clock.now() + after
    with condition:
        while clock.now() < until:
            clock.wait(condition, until)
    assert clock.now() >= until


@pytest.mark.parametrize("until", [math.inf, 1e300], ids=["for ever", "longer than threads can"])
def test_waiting_on_the_system_clock_ends_when_notified(until):
    waiter = Waiter(SystemClock(), until)
    while waiter.is_alive():
        with waiter.condition:
            waiter.condition.notify_all()
    assert waiter.woken_at is not None


def test_advancing_wakes_exactly_the_due_waits():
    clock = ManualClock()
    early, late = Waiter(clock, 1.0), Waiter(clock, 2.0)
    clock.until_waiting(2)
    clock.advance(1.0)
    assert early.joined() == 1.0
    clock.until_waiting(1)
    assert late.woken_at is None
    clock.advance(5.0)
    assert late.joined() == 6.0
    clock.until_waiting(0)


def test_time_never_goes_back():
    with pytest.raises(ValueError, match="seconds: found -1, expected 0 or more"):
        ManualClock().advance(-1)


def test_until_waiting_times_out(monkeypatch):
    monkeypatch.setattr(manual, "_GUARD_S", 0.0)
    with pytest.raises(TimeoutError, match=r"found 0 wait\(s\), expected 2"):
        ManualClock().until_waiting(2)
