"""The autoscaling rule as Ray Serve's policy: wanted replicas for the replicas' metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers import ROOT

from reference_server.autoscaling import (
    DRAIN_S,
    PEAK_S,
    PEAK_USED,
    PENDING,
    REQUESTS,
    ROWS,
    USED,
    ByWork,
    Goal,
    Peak,
    replicas_wanted,
)


class Point(NamedTuple):
    timestamp: float
    value: float


@dataclass
class Situation:
    """Serve's context; `rows` and `pending` are of each replica, in the last ten seconds."""

    rows: tuple[float, ...] = (0.0,)
    pending: tuple[float, ...] = (0.0,)
    total_queued_requests: float = 0.0
    current_time: float = 100.0
    rows_of_a_request: float = 1.0
    policy_state: dict[str, object] = field(default_factory=dict)

    @property
    def current_num_replicas(self) -> int:
        return len(self.rows)

    @property
    def running_replicas(self) -> list[int]:
        return list(range(len(self.rows)))

    @property
    def raw_metrics(self) -> dict[str, dict[int, list[Point]]]:
        def grown(by: float) -> list[Point]:
            return [Point(90.0, 7.0), Point(100.0, 7.0 + by)]

        return {
            ROWS: {number: grown(rows) for number, rows in enumerate(self.rows)},
            REQUESTS: {
                number: grown(rows / self.rows_of_a_request)
                for number, rows in enumerate(self.rows)
            },
            # The metrics of a replica that has ended.
            PENDING: {
                **{number: [Point(100.0, rows)] for number, rows in enumerate(self.pending)},
                99: [Point(100.0, 1e6)],
            },
        }


POLICY = ByWork(rows_per_second=100, full_batch_seconds=0.1, latency_goal_seconds=1.1)


def test_the_current_rate_is_three_fifths_of_the_capacity():
    assert POLICY(Situation(rows=(600, 600)))[0] == pytest.approx(2)
    assert POLICY(Situation(rows=(1200, 1200)))[0] == pytest.approx(4)
    assert POLICY(Situation(rows=(0, 0, 0)))[0] == 0


def test_late_rows_are_processed_in_a_quarter_of_a_minute():
    wanted, _ = POLICY(Situation(rows=(600, 600), pending=(100, 100)))
    assert wanted == pytest.approx(2)
    wanted, _ = POLICY(Situation(rows=(600, 600), pending=(100, 100), total_queued_requests=3000))
    assert wanted == pytest.approx(2 + 2 * 15 / 15)


def test_queued_requests_count_with_the_mean_rows_per_request():
    wanted, _ = POLICY(Situation(rows=(600,), total_queued_requests=400, rows_of_a_request=4))
    assert wanted == pytest.approx(1 + 15 / 15)


def test_growth_of_the_queues_counts_for_the_rate():
    _, state = POLICY(Situation(rows=(600,), current_time=100.0))
    wanted, state = POLICY(
        Situation(rows=(600,), pending=(60,), current_time=101.0, policy_state=state)
    )
    assert wanted == pytest.approx(2)
    # What was seen 30 s ago is of no account, but that as many came: they are to be four fifths.
    wanted, state = POLICY(
        Situation(rows=(600,), pending=(60,), current_time=200.0, policy_state=state)
    )
    assert wanted == pytest.approx(1.2 / 0.8)
    # A quarter of an hour later that is of no account, either.
    wanted, _ = POLICY(
        Situation(rows=(600,), pending=(60,), current_time=1100.0, policy_state=state)
    )
    assert wanted == pytest.approx(1)


def test_without_metrics_only_queued_requests_count():
    situation = Situation(rows=(), pending=(), total_queued_requests=400)
    assert POLICY(situation)[0] == pytest.approx((4 - 1) / 15)


def test_an_invalid_number_is_named():
    with pytest.raises(ValueError, match="latency_goal_seconds: found 0; expected a number"):
        ByWork(1, 1, 0)


# The figures of the cases in observe/autoscaling_test.yml.
@pytest.mark.parametrize(
    ("rate", "waiting", "replicas", "wanted"), [(667, 0, 2, 0.833), (1334, 40020, 1, 7.328)]
)
def test_the_rule_is_that_of_prometheus(rate, waiting, replicas, wanted):
    goal = Goal(rows_per_s=667, full_batch_s=0.024, latency_s=0.1)
    assert replicas_wanted(rate, rate, waiting, replicas, goal) / replicas == pytest.approx(
        wanted, abs=6e-4
    )


def test_the_constants_of_the_rule_are_those_of_prometheus():
    rules = (ROOT / "observe" / "autoscaling.yml").read_text()
    come, most = "job_model:come:rows_per_second", "job_model:come_at_most:rows_per_second"
    assert f"{come} / {USED} > {most} / {PEAK_USED}\n" in rules
    assert f"or {most} / {PEAK_USED}\n" in rules
    assert f"max_over_time({come}[{PEAK_S // 60}m])\n" in rules
    assert f"job_model:late:seconds / {DRAIN_S}\n" in rules
    assert set(re.findall(r"\[(\d+)s\]", rules)) == {"30"}


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 9)), min_size=1))
def test_the_peak_is_the_largest_recent_rate(steps):
    peak, now, came = Peak(), 0, []
    for seconds, come in steps:
        now += seconds
        came.append((now, come))
        lately = [each for at, each in came if now - at <= PEAK_S]
        assert peak.add(now, come) == max(lately)
        assert len(peak.points) <= len(set(lately))
