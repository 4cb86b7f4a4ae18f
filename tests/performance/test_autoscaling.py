"""The rules of the simulated autoscaler, and that a fleet which changes its size loses nobody."""

import re

import pytest
from support.servers import ROOT

from benchmarks import autoscaling
from benchmarks.autoscaling import (
    Autoscaler,
    Reading,
    arrivals,
    ratio,
    simulate,
    work,
)
from benchmarks.fleet import Model
from reference_server.autoscaling import DRAIN_S, USED, Goal

MS = 1_000_000
MODEL = Model(base_ns=8 * MS, row_ns=MS, largest=16, delay_ns=0)
GOAL = Goal(rows_per_s=667, full_batch_s=0.024, latency_s=0.1)


# The figures are those of the cases in observe/autoscaling_test.yml.
@pytest.mark.parametrize(
    ("now", "seconds", "replicas", "wanted"),
    [
        (Reading(answered=20010, pending=0), 30, 2, 0.833),
        (Reading(answered=40020, pending=40020), 60, 1, 7.328),
        (Reading(), 30, 1, 0),
    ],
)
def test_the_rule_is_that_of_prometheus(now, seconds, replicas, wanted):
    assert work(Reading(), now, seconds, replicas, GOAL) == pytest.approx(wanted, abs=6e-4)


def test_the_numbers_of_the_rule_are_those_of_prometheus():
    rules = (ROOT / "observe" / "autoscaling.yml").read_text()
    assert f"/ {USED}\n" in rules
    assert f"job_model:late:seconds / {DRAIN_S}\n" in rules
    assert set(re.findall(r"\[(\d+)s\]", rules)) == {str(autoscaling.RATE_S)}
    assert f"interval: {autoscaling.DECIDE_S}s" in rules


def test_the_usual_rule_is_blind_to_load_while_batches_have_room():
    """What waits while a batch runs is the next batch: as long as half of it, at any load."""
    few, many = (
        Reading(answered=rows, queued_s=rows * 0.005, computed_s=rows * 0.01)
        for rows in (1_000, 20_000)
    )
    assert ratio(Reading(), few, 30, 1, GOAL) == ratio(Reading(), many, 30, 1, GOAL) == 0.5
    assert work(Reading(), few, 30, 1, GOAL) < work(Reading(), many, 30, 1, GOAL) / 10


def test_an_autoscaler_takes_what_is_near_enough_for_right():
    assert Autoscaler(64).decide(15, 10, 1.09) == 10
    assert Autoscaler(64).decide(15, 10, 1.11) == 12


def test_an_autoscaler_grows_by_twice_or_by_four():
    assert Autoscaler(64).decide(15, 3, 100) == 7
    assert Autoscaler(64).decide(15, 10, 100) == 20
    assert Autoscaler(16).decide(15, 10, 100) == 16


def test_an_autoscaler_shrinks_to_what_was_enough_for_five_minutes():
    autoscaler = Autoscaler(64)
    assert autoscaler.decide(15, 10, 1.0) == 10
    assert [autoscaler.decide(at, 10, 0.5) for at in (30, 315, 330)] == [10, 10, 5]
    assert Autoscaler(64).decide(15, 2, 0) == 2


def test_a_fleet_that_changes_its_size_answers_everybody():
    rates = [200.0] * 60 + [1500.0] * 60 + [100.0] * 420 + [0.0] * 5
    coming = list(arrivals(iter(rates), seed=3))
    outcome = simulate(MODEL, work, iter(coming), GOAL, replicas=2, most=32, start_s=10)
    sizes = [second.replicas for second in outcome.seconds]
    assert (sizes[0], sizes[-1]) == (2, 2)
    assert max(sizes) >= 4
    assert sum(second.answered for second in outcome.seconds) == sum(map(len, coming))
    assert outcome.replica_s == sum(sizes)
    assert 0 < outcome.missed < 1
