"""The number of replicas that a model needs: the rule, and its policy for Ray Serve.

docs/deployment.md derives the rule; observe/autoscaling.yml implements it for Prometheus. The
module imports no part of Ray: Serve's controller calls the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: The target utilization at the current rate, as a share of the capacity in full batches. The rest
#: is reserved for a higher rate while a replica starts.
USED = 0.6
#: The target utilization at the highest rate of the last `PEAK_S` seconds. A rate that was already
#: seen needs a smaller reserve.
PEAK_USED = 0.8
PEAK_S = 900
#: The time in seconds in which replicas process the rows that wait for too long.
DRAIN_S = 15

#: The names of the metrics that a replica reports in `record_autoscaling_stats`.
ROWS = "rows"
REQUESTS = "requests"
PENDING = "pending"


@dataclass(frozen=True)
class Goal:
    """The capacity of one replica in full batches, and the allowed latency of a request."""

    rows_per_s: float
    full_batch_s: float
    latency_s: float


def replicas_wanted(
    rate_per_s: float, peak_per_s: float, waiting: float, replicas: int, goal: Goal
) -> float:
    """Return the wanted number of replicas if there are `replicas` now.

    The current rate may use three fifths of the replicas' capacity in full batches, and the recent
    peak rate (`Peak`) four fifths. Rows that wait longer than the goal allows are to be processed
    within a quarter of a minute.
    """
    capacity_per_s = replicas * goal.rows_per_s
    late_s = (
        max(0.0, waiting / capacity_per_s - (goal.latency_s - goal.full_batch_s))
        if capacity_per_s
        else 0.0
    )
    needed_per_s = max(rate_per_s / USED, peak_per_s / PEAK_USED)
    return needed_per_s / goal.rows_per_s + replicas * late_s / DRAIN_S


class Peak:
    """The highest rate of the last quarter of an hour, in rows per second.

    `points` holds pairs of a time and a rate, in falling order of the rates. A rate that a later
    rate exceeds is dropped: it can never be the highest.
    """

    def __init__(self, points: Iterable[tuple[float, float]] = ()) -> None:
        self.points = list(points)

    def add(self, now_s: float, rate_per_s: float) -> float:
        """Add the current rate, and return the highest rate."""
        kept = [(at_s, rate) for at_s, rate in self.points if 0 <= now_s - at_s <= PEAK_S]
        while kept and kept[-1][1] <= rate_per_s:
            kept.pop()
        self.points = [*kept, (now_s, rate_per_s)]
        return self.points[0][1]


class Measured(Protocol):
    """A value at a time, in seconds."""

    timestamp: float
    value: float


class Situation(Protocol):
    """The fields of Serve's `AutoscalingContext` that the policy reads."""

    current_num_replicas: int
    running_replicas: Sequence[Any]
    current_time: float | None
    policy_state: dict[str, Any]

    @property
    def total_queued_requests(self) -> float:
        """Requests that are not yet assigned to a replica."""

    @property
    def raw_metrics(self) -> Mapping[str, Mapping[Any, Sequence[Measured]]] | None:
        """The recent values of each metric (`ROWS`, `REQUESTS`, `PENDING`), by replica."""


class ByWork:
    """The rule as an autoscaling policy of Serve.

    Args:
        rows_per_second: the rows that a replica executes per second in full batches.
        full_batch_seconds: the execution time of a full batch.
        latency_goal_seconds: the allowed latency of a request.

    Raises:
        ValueError: a number is not above 0.
    """

    def __init__(
        self, rows_per_second: float, full_batch_seconds: float, latency_goal_seconds: float
    ) -> None:
        given = {"rows_per_second": rows_per_second, "full_batch_seconds": full_batch_seconds}
        for name, value in {**given, "latency_goal_seconds": latency_goal_seconds}.items():
            if not value > 0:
                raise ValueError(f"{name}: found {value}; expected a number above 0")
        self._goal = Goal(rows_per_second, full_batch_seconds, latency_goal_seconds)

    def __call__(self, situation: Situation) -> tuple[float, dict[str, Any]]:
        """Return the wanted number of replicas, and the state for the next call."""
        metrics = situation.raw_metrics or {}
        live = set(situation.running_replicas)

        def series(name: str) -> list[Sequence[Measured]]:
            found = metrics.get(name, {})
            return [points for replica, points in found.items() if replica in live and points]

        rows, requests = (sum(map(_rate, series(name))) for name in (ROWS, REQUESTS))
        rows_of_one = rows / requests if requests else 1.0
        pending = sum(points[-1].value for points in series(PENDING))
        waiting = ((situation.total_queued_requests or 0.0) + pending) * rows_of_one
        state = dict(situation.policy_state)
        now = situation.current_time or 0.0
        growth = _growth(state, now, waiting)
        rate = max(0.0, rows + growth)
        peak = Peak(state.get(_PEAK, ()))
        most = peak.add(now, rate)
        state[_PEAK] = peak.points
        replicas = max(1, situation.current_num_replicas)
        return replicas_wanted(rate, most, waiting, replicas, self._goal), state


def _rate(points: Sequence[Measured]) -> float:
    """Return a counter's growth per second; 0 if the counter was reset."""
    first, last = points[0], points[-1]
    seconds = last.timestamp - first.timestamp
    return max(0.0, last.value - first.value) / seconds if seconds > 0 else 0.0


_PEAK, _SEEN = "peak", "waiting"
#: The period over which the growth of the queue is measured, and the interval of its samples.
_RATE_S = 30
_SAMPLE_S = 1


def _growth(state: dict[str, Any], now_s: float, waiting: float) -> float:
    """Return the growth of the waiting rows per second; keep the samples in `state`."""
    seen = [point for point in state.get(_SEEN, ()) if now_s - _RATE_S <= point[0] <= now_s]
    if not seen or now_s - seen[-1][0] >= _SAMPLE_S:
        seen.append((now_s, waiting))
    state[_SEEN] = seen
    seconds = now_s - seen[0][0]
    return (waiting - float(seen[0][1])) / seconds if seconds > 0 else 0.0
