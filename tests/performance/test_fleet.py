"""The simulated fleet: nobody is lost, and time goes by as the model says."""

import pytest

from benchmarks.fleet import Model, arrivals, simulate

MS = 1_000_000
MODEL = Model(base_ns=2 * MS, row_ns=MS, largest=4, delay_ns=0)


def test_who_comes_to_an_idle_replica_waits_for_nobody():
    fleet, latencies = simulate(MODEL, 1, [0, 10 * MS])
    assert latencies == [3.0, 3.0]
    assert (fleet[0].executions, fleet[0].busy_ns) == (2, 6 * MS)


def test_who_waits_is_executed_together():
    _, latencies = simulate(MODEL, 1, [0, MS, 2 * MS])
    assert latencies == [3.0, 6.0, 5.0]


def test_requests_go_where_the_fewest_are():
    fleet, latencies = simulate(MODEL, 3, [0, MS, 2 * MS])
    assert latencies == [3.0, 3.0, 3.0]
    assert [each.executions for each in fleet] == [1, 1, 1]


@pytest.mark.parametrize("delay_ns", [0, 5 * MS])
@pytest.mark.parametrize("replicas", [1, 3])
def test_everybody_is_answered_once(replicas, delay_ns):
    model = Model(base_ns=2 * MS, row_ns=MS, largest=4, delay_ns=delay_ns)
    fleet, latencies = simulate(model, replicas, arrivals(500, 2, seed=5))
    assert len(latencies) == 1_000
    assert min(latencies) >= 3.0
    assert [each.in_flight for each in fleet] == [0] * replicas
