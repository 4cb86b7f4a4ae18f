"""Benchmarks that start servers return plausible figures."""

import pytest

from benchmarks import busy_models, scaling, starts

pytestmark = pytest.mark.brute_force


def in_this_process(loop, *arguments):
    return loop(*arguments)


@pytest.mark.parametrize("curve", ["idle", "regions"])
def test_a_point_of_a_curve_is_measured(curve):
    turn = scaling.measure(curve, 2, "reference", in_this_process, 0.05)
    assert (turn.curve, turn.count) == (curve, 2)
    assert 0 < turn.p50 <= turn.p99
    assert turn.per_second > 0


def test_time_and_memory_of_a_start_are_measured():
    turn = starts.measure(2, "reference")
    assert turn.seconds > 0
    assert turn.mib > 10


def test_a_busy_model_executes_beside_other_requests():
    taken = busy_models.measure("python", "process", 0.1)
    assert {"health", "inference", "busy"} == set(taken)
    assert min(taken["busy"]) >= 0.05
    assert all(taken.values())
