"""An alarm rings when its time has come, and not before."""

import queue

import pytest
from server.support.clock import ManualClock
from server.support.requests import PATIENCE_S

from reference_server.scheduling.instance_scheduler import Alarm

MS = 1_000_000
HOUR_NS = 3_600_000 * MS


@pytest.fixture
def ringing():
    """An alarm, its clock, and what it has rung: the times."""
    clock, rings = ManualClock(), queue.SimpleQueue()
    alarm = Alarm("test", clock, lambda: rings.put(clock.now_ns))
    yield alarm, clock, rings
    alarm.close()


def test_it_rings_once_when_its_time_has_come(ringing):
    alarm, clock, rings = ringing
    alarm.set(1 * MS)
    clock.advance(ns=1 * MS)
    assert rings.get(timeout=PATIENCE_S) == 1 * MS
    alarm.close()
    assert rings.empty()


def test_the_earliest_of_several_times_counts(ringing):
    alarm, clock, rings = ringing
    alarm.set(HOUR_NS)
    alarm.set(1 * MS)
    alarm.set(HOUR_NS)
    clock.advance(ns=1 * MS)
    assert rings.get(timeout=PATIENCE_S) == 1 * MS


def test_a_closed_one_rings_no_more(ringing):
    alarm, clock, rings = ringing
    alarm.set(HOUR_NS)
    alarm.close()
    clock.advance(ns=HOUR_NS)
    alarm.set(0)
    alarm.close()
    assert rings.empty()


def test_one_that_was_never_set_closes(ringing):
    alarm, _, rings = ringing
    alarm.close()
    assert rings.empty()
