"""Benchmarks that start servers return plausible figures."""

import pytest

from benchmarks import busy_models, starts

pytestmark = pytest.mark.brute_force


def test_time_and_memory_of_a_start_are_measured():
    turn = starts.measure(2, "reference")
    assert turn.seconds > 0
    assert turn.mib > 10


def test_a_busy_model_executes_beside_other_requests():
    taken = busy_models.measure("python", "process", 0.1)
    assert {"health", "inference", "busy"} == set(taken)
    assert min(taken["busy"]) >= 0.05
    assert all(taken.values())
