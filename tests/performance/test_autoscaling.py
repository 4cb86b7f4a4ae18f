"""The rules of the simulated autoscaler, and a fleet that loses no request when it is resized."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers import ROOT

from benchmarks import fleet
from benchmarks.autoscaling import arrivals
from benchmarks.fleet import (
    Autoscaler,
    Model,
    Reading,
    Replica,
    Situation,
    ratio,
    simulate,
    work,
)
from benchmarks.queues import NullSink
from reference_server.autoscaling import DRAIN_S, PEAK_S, PEAK_USED, USED, Goal, Peak
from reference_server.core.request import InferRequest

MS = 1_000_000
MODEL = Model(base_ns=8 * MS, row_ns=MS, largest=16, delay_ns=0)
GOAL = Goal(rows_per_s=667, full_batch_s=0.024, latency_s=0.1)


# The figures of the cases in observe/autoscaling_test.yml.
@pytest.mark.parametrize(
    ("now", "seconds", "replicas", "wanted"),
    [
        (Reading(answered=20010, pending=0), 30, 2, 0.833),
        (Reading(answered=40020, pending=40020), 60, 1, 7.328),
        (Reading(), 30, 1, 0),
    ],
)
def test_the_rule_is_that_of_prometheus(now, seconds, replicas, wanted):
    seen = Situation(Reading(), now, 0, seconds, replicas)
    assert work(GOAL)(seen) == pytest.approx(wanted, abs=6e-4)


# The figures of the cases in observe/autoscaling_test.yml.
@pytest.mark.parametrize(("seconds", "wanted"), [(30, 1.25), (PEAK_S, 1.25), (PEAK_S + 1, 0.333)])
def test_the_peak_rate_is_kept_for_a_quarter_of_an_hour(seconds, wanted):
    rule = work(GOAL)
    assert rule(Situation(Reading(), Reading(answered=20010), 0, 30, 1)) == pytest.approx(1 / USED)
    later = Situation(Reading(), Reading(answered=4002), seconds, 30 + seconds, 1)
    later = later._replace(before_s=later.now_s - 30)
    assert rule(later) == pytest.approx(wanted, abs=6e-4)


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 9)), min_size=1))
def test_the_peak_is_the_largest_recent_rate(steps):
    peak, now, came = Peak(), 0, []
    for seconds, come in steps:
        now += seconds
        came.append((now, come))
        lately = [each for at, each in came if now - at <= PEAK_S]
        assert peak.seen(now, come) == max(lately)
        assert len(peak.points) <= len(set(lately))


def test_the_constants_of_the_rule_are_those_of_prometheus():
    rules = (ROOT / "observe" / "autoscaling.yml").read_text()
    come, most = "job_model:come:rows_per_second", "job_model:come_at_most:rows_per_second"
    assert f"{come} / {USED} > {most} / {PEAK_USED}\n" in rules
    assert f"or {most} / {PEAK_USED}\n" in rules
    assert f"max_over_time({come}[{PEAK_S // 60}m])\n" in rules
    assert f"job_model:late:seconds / {DRAIN_S}\n" in rules
    assert set(re.findall(r"\[(\d+)s\]", rules)) == {str(fleet.RATE_S)}
    assert f"interval: {fleet.DECIDE_S}s" in rules


def test_waiting_requests_are_executed_together():
    replica = Replica(MODEL)
    requests = [InferRequest("m", {}, NullSink(), queued_ns=at) for at in range(3)]
    assert [replica.add(one, one.queued_ns) for one in requests] == [9 * MS, None, None]
    assert replica.waiting == 2
    assert replica.poll(9 * MS) == (requests[:1], 19 * MS)
    assert replica.poll(18 * MS) == ([], None)
    assert replica.poll(19 * MS) == (requests[1:], None)
    assert replica.in_flight == 0


def test_the_usual_rule_ignores_the_load_while_batches_are_not_full():
    """Requests wait for half of the running batch on average, at any load."""
    few, many = (
        Reading(answered=rows, queued_s=rows * 0.005, computed_s=rows * 0.01)
        for rows in (1_000, 20_000)
    )
    seen = [Situation(Reading(), now, 0, 30, 1) for now in (few, many)]
    assert [ratio(GOAL)(each) for each in seen] == [0.5, 0.5]
    less, more = (work(GOAL)(each) for each in seen)
    assert less < more / 10


def test_an_autoscaler_ignores_small_deviations():
    assert Autoscaler(64).decide(15, 10, 1.09) == 10
    assert Autoscaler(64).decide(15, 10, 1.11) == 12


def test_an_autoscaler_doubles_or_adds_four():
    assert Autoscaler(64).decide(15, 3, 100) == 7
    assert Autoscaler(64).decide(15, 10, 100) == 20
    assert Autoscaler(16).decide(15, 10, 100) == 16


def test_an_autoscaler_shrinks_after_five_minutes():
    autoscaler = Autoscaler(64)
    assert autoscaler.decide(15, 10, 1.0) == 10
    assert [autoscaler.decide(at, 10, 0.5) for at in (30, 315, 330)] == [10, 10, 5]
    assert Autoscaler(64).decide(15, 2, 0) == 2


@pytest.mark.brute_force
def test_a_resized_fleet_responds_to_all_requests():
    rates = [200.0] * 60 + [1500.0] * 60 + [100.0] * PEAK_S + [50.0] * 320 + [0.0] * 5
    coming = list(arrivals(iter(rates), seed=3))
    outcome = simulate(MODEL, work(GOAL), iter(coming), GOAL, replicas=2, most=32, start_s=10)
    sizes = [second.replicas for second in outcome.seconds]
    assert (sizes[0], sizes[-1]) == (2, 2)
    assert max(sizes) >= 4
    assert sum(second.answered for second in outcome.seconds) == sum(map(len, coming))
    assert outcome.replica_s == sum(sizes)
    assert 0 < outcome.missed() < 1


@pytest.mark.brute_force
def test_only_the_first_burst_is_late():
    model = Model(base_ns=80 * MS, row_ns=10 * MS, largest=16, delay_ns=0)
    goal = Goal(model.most_per_second, full_batch_s=0.24, latency_s=1)
    period = [80.0] * 120 + [400.0] * 60 + [80.0] * 360
    coming = arrivals(iter(period * 2), seed=3)
    outcome = simulate(model, work(goal), coming, goal, replicas=3, most=32, start_s=20)
    late = [second.missed for second in outcome.seconds]
    assert sum(late[: len(period)]) > 1000
    assert sum(late[len(period) :]) == 0
