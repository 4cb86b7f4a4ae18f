"""A timer fires at its time, and not before."""

import queue

import pytest
from server.support.clock import ManualClock
from server.support.requests import PATIENCE_S

from reference_server.scheduling.instance_scheduler import Timer

MS = 1_000_000
HOUR_NS = 3_600_000 * MS


@pytest.fixture
def ringing():
    """A timer, its clock, and the times at which it has fired."""
    clock, fires = ManualClock(), queue.SimpleQueue()
    timer = Timer("test", clock, lambda: fires.put(clock.now_ns))
    yield timer, clock, fires
    timer.close()


def test_fires_once_at_its_time(ringing):
    timer, clock, fires = ringing
    timer.set(1 * MS)
    clock.advance(ns=1 * MS)
    assert fires.get(timeout=PATIENCE_S) == 1 * MS
    timer.close()
    assert fires.empty()


def test_earliest_time_counts(ringing):
    timer, clock, fires = ringing
    timer.set(HOUR_NS)
    timer.set(1 * MS)
    timer.set(HOUR_NS)
    clock.advance(ns=1 * MS)
    assert fires.get(timeout=PATIENCE_S) == 1 * MS


def test_closed_timer_does_not_fire(ringing):
    timer, clock, fires = ringing
    timer.set(HOUR_NS)
    timer.close()
    clock.advance(ns=HOUR_NS)
    timer.set(0)
    timer.close()
    assert fires.empty()


def test_unset_timer_can_be_closed(ringing):
    timer, _, fires = ringing
    timer.close()
    assert fires.empty()
