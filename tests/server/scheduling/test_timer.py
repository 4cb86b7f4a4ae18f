"""A timer fires when its time has come, and not before."""

import queue

import pytest
from server.support.clock import ManualClock
from server.support.requests import PATIENCE_S

from reference_server.scheduling.timer import Timer

MS = 1_000_000
HOUR_NS = 3_600_000 * MS


@pytest.fixture
def ringing():
    """An timer, its clock, and what it has rung: the times."""
    clock, fires = ManualClock(), queue.SimpleQueue()
    timer = Timer("test", clock, lambda: fires.put(clock.now_ns))
    yield timer, clock, fires
    timer.close()


def test_it_rings_once_when_its_time_has_come(ringing):
    timer, clock, fires = ringing
    timer.set(1 * MS)
    clock.advance(ns=1 * MS)
    assert fires.get(timeout=PATIENCE_S) == 1 * MS
    timer.close()
    assert fires.empty()


def test_the_earliest_of_several_times_counts(ringing):
    timer, clock, fires = ringing
    timer.set(HOUR_NS)
    timer.set(1 * MS)
    timer.set(HOUR_NS)
    clock.advance(ns=1 * MS)
    assert fires.get(timeout=PATIENCE_S) == 1 * MS


def test_a_closed_one_rings_no_more(ringing):
    timer, clock, fires = ringing
    timer.set(HOUR_NS)
    timer.close()
    clock.advance(ns=HOUR_NS)
    timer.set(0)
    timer.close()
    assert fires.empty()


def test_one_that_was_never_set_closes(ringing):
    timer, _, fires = ringing
    timer.close()
    assert fires.empty()
