"""How many replicas a model needs: the rule, and the rule as a policy of Ray Serve.

docs/deployment.md says where it comes from; observe/autoscaling.yml is the same for Prometheus.
Nothing of Ray is imported here: Serve's controller calls the policy with what it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: The share of full batches that replicas are to be used to by what comes now; the rest is for what
#: comes while a replica starts.
USED = 0.6
#: The same by the most that came in the last `PEAK_S` seconds: it has been seen, so that less is
#: kept beyond it.
PEAK_USED = 0.8
PEAK_S = 900
#: In what time replicas are to be through with what waits for too long.
DRAIN_S = 15

#: What a replica tells the policy of its model, by `record_autoscaling_stats`.
ROWS = "rows"
REQUESTS = "requests"
PENDING = "pending"


@dataclass(frozen=True)
class Goal:
    """What a rule is told of the model: what a replica can do, and how long a request may take."""

    rows_per_s: float
    full_batch_s: float
    latency_s: float


def replicas_wanted(
    come_per_s: float, peak_per_s: float, waiting: float, replicas: int, goal: Goal
) -> float:
    """How many replicas there should be, of which there are `replicas`.

    Rows that come are to be three fifths of what can be done in full batches, the most that came
    lately (`Peak`) four fifths, and what waits longer than the goal allows is to be gone in a
    quarter of a minute.
    """
    can_do = replicas * goal.rows_per_s
    late_s = max(0.0, waiting / can_do - (goal.latency_s - goal.full_batch_s)) if can_do else 0.0
    held_per_s = max(come_per_s / USED, peak_per_s / PEAK_USED)
    return held_per_s / goal.rows_per_s + replicas * late_s / DRAIN_S


class Peak:
    """The most rows a second of the last quarter of an hour.

    `points` are moments and what came, of which each came less than the one before: the others
    will never be the most.
    """

    def __init__(self, points: Iterable[tuple[float, float]] = ()) -> None:
        self.points = list(points)

    def seen(self, now_s: float, come_per_s: float) -> float:
        """What comes now; the most is returned."""
        kept = [(at_s, come) for at_s, come in self.points if 0 <= now_s - at_s <= PEAK_S]
        while kept and kept[-1][1] <= come_per_s:
            kept.pop()
        self.points = [*kept, (now_s, come_per_s)]
        return self.points[0][1]


class Measured(Protocol):
    """A value at a time, in seconds."""

    timestamp: float
    value: float


class Situation(Protocol):
    """What the policy reads of Serve's `AutoscalingContext`."""

    current_num_replicas: int
    running_replicas: Sequence[Any]
    current_time: float | None
    policy_state: dict[str, Any]

    @property
    def total_queued_requests(self) -> float:
        """Requests that no replica has been given."""

    @property
    def raw_metrics(self) -> Mapping[str, Mapping[Any, Sequence[Measured]]] | None:
        """What replicas have told lately, by the names above and by replica."""


class ByWork:
    """The rule as Serve's autoscaling policy.

    `rows_per_second` is what a replica does in full batches, `full_batch_seconds` how long one is
    executed, `latency_goal_seconds` how long a request may take.
    """

    def __init__(
        self, rows_per_second: float, full_batch_seconds: float, latency_goal_seconds: float
    ) -> None:
        given = {"rows_per_second": rows_per_second, "full_batch_seconds": full_batch_seconds}
        for name, value in {**given, "latency_goal_seconds": latency_goal_seconds}.items():
            if not value > 0:
                raise ValueError(f"{name} is {value}, expected a number above 0")
        self._goal = Goal(rows_per_second, full_batch_seconds, latency_goal_seconds)

    def __call__(self, situation: Situation) -> tuple[float, dict[str, Any]]:
        """How many replicas are wanted, and what the next call is to know."""
        told = situation.raw_metrics or {}
        live = set(situation.running_replicas)

        def series(name: str) -> list[Sequence[Measured]]:
            found = told.get(name, {})
            return [points for replica, points in found.items() if replica in live and points]

        rows, requests = (sum(map(_rate, series(name))) for name in (ROWS, REQUESTS))
        rows_of_one = rows / requests if requests else 1.0
        pending = sum(points[-1].value for points in series(PENDING))
        waiting = ((situation.total_queued_requests or 0.0) + pending) * rows_of_one
        state = dict(situation.policy_state)
        now = situation.current_time or 0.0
        growth = _growth(state, now, waiting)
        come = max(0.0, rows + growth)
        peak = Peak(state.get(_PEAK, ()))
        most = peak.seen(now, come)
        state[_PEAK] = peak.points
        replicas = max(1, situation.current_num_replicas)
        return replicas_wanted(come, most, waiting, replicas, self._goal), state


def _rate(points: Sequence[Measured]) -> float:
    """By how much a counter grows in a second; one that has begun anew, by nothing."""
    first, last = points[0], points[-1]
    seconds = last.timestamp - first.timestamp
    return max(0.0, last.value - first.value) / seconds if seconds > 0 else 0.0


_PEAK, _SEEN = "peak", "waiting"
#: Over what time, in seconds, the growth of what waits is told, and how often it is looked at.
_RATE_S = 30
_LOOK_S = 1


def _growth(state: dict[str, Any], now_s: float, waiting: float) -> float:
    """By how many rows a second more wait; `state` keeps what was seen."""
    seen = [point for point in state.get(_SEEN, ()) if now_s - _RATE_S <= point[0] <= now_s]
    if not seen or now_s - seen[-1][0] >= _LOOK_S:
        seen.append((now_s, waiting))
    state[_SEEN] = seen
    seconds = now_s - seen[0][0]
    return (waiting - float(seen[0][1])) / seconds if seconds > 0 else 0.0
