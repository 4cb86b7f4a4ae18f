"""Early answers and the counts of their waiting times, on virtual time."""

from itertools import accumulate, permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.scheduling.early_answers import (
    FAIRNESS,
    SENDING_S,
    WORTH_SENDING,
    Answered,
    EarlyAnswers,
    earliest_answers,
)
from ge_runtime.testing import ManualClock

WORTH_S = SENDING_S * WORTH_SENDING


@pytest.fixture
def clock():
    return ManualClock()


def test_early_answers_are_sent_and_the_last_ones_wait_for_the_batch(clock):
    answered = []
    early = EarlyAnswers(5, 6.0, 1, answered.append, clock)
    clock.advance(1.0)
    early.add(Answered([3, 4], 1.0))
    clock.advance(2.0)
    early.add(Answered([0], 2.0))
    clock.advance(3.0)
    early.add(Answered([1, 2], 3.0))
    assert answered == [[3, 4], [0]]
    counts = early.counts()
    assert counts.early_answers == 3
    assert counts.early_seconds == 2 * 5.0 + 3.0
    assert counts.answer_seconds == 2 * 1.0 + 3.0 + 2 * 6.0


@pytest.mark.parametrize("members", [1, 3])
def test_answers_are_not_sent_early_if_sending_costs_too_much(clock, members):
    answered = []
    for more in (0.99, 1.01):
        early = EarlyAnswers(members + 1, 1.0 + members * WORTH_S * more, 1, answered.append, clock)
        early.add(Answered(range(members), 1.0))
    assert answered == [range(members)]


def test_several_executors_share_the_remaining_time(clock):
    answered = []
    for executors in (1, 2):
        early = EarlyAnswers(2, 1.0 + 1.5 * WORTH_S, executors, answered.append, clock)
        early.add(Answered([0], 1.0))
    assert answered == [[0]]


def test_an_execution_without_unreported_requests_counts_as_ended(clock):
    answered = []
    early = EarlyAnswers(3, 1.0 + 0.5 * WORTH_S, 1, answered.append, clock)
    early.add(Answered([0], 0.0))  # a half of an execution that continues
    early.add(Answered([], 1.0))
    early.add(Answered([1], 0.0))
    assert answered == [[0]]


SLACK = 1 + 1e-6


@st.composite
def batches(draw, most=8, requests_each=4):
    """Draw executions: their times, and their requests in a random order of arrival."""
    counts = draw(st.lists(st.integers(1, requests_each), min_size=1, max_size=most))
    arrivals = iter(draw(st.permutations(range(sum(counts)))))
    members = [tuple(sorted(next(arrivals) for _ in range(count))) for count in counts]
    seconds = [draw(st.floats(1e-4, 1.0)) for _ in counts]
    return seconds, members


def due_of(members):
    """Draw a deadline or none for each request."""
    count = sum(map(len, members))
    times = st.one_of(st.floats(0.0, 4.0), st.just(inf))
    return st.lists(times, min_size=count, max_size=count)


def ends_of(order, seconds):
    """Return the end of each execution."""
    ends = accumulate(seconds[place] for place in order)
    return dict(zip(order, ends, strict=True))


def first_come(seconds, members):
    """Return the end of each execution if that of the oldest request is first."""
    return ends_of(sorted(range(len(seconds)), key=lambda place: members[place][0]), seconds)


def never(members):
    return [inf] * sum(map(len, members))


def waited(order, seconds, members):
    """Return the sum of the waiting times of all requests."""
    ends = ends_of(order, seconds)
    return sum(ends[place] * len(own) for place, own in enumerate(members))


def is_fair(order, seconds, members):
    come, ends = first_come(seconds, members), ends_of(order, seconds)
    return all(ends[place] <= FAIRNESS * come[place] * SLACK for place in order)


@given(batches())
def test_no_request_waits_longer_than_a_multiple_of_arrival_order(batch):
    seconds, members = batch
    order = earliest_answers(seconds, members, never(members))
    assert sorted(order) == list(range(len(seconds)))
    assert is_fair(order, seconds, members)


@given(st.data())
def test_deadlines_met_by_the_given_order_are_met(data):
    seconds, members = data.draw(batches())
    due = data.draw(due_of(members))
    given_ends = ends_of(range(len(seconds)), seconds)
    order = earliest_answers(seconds, members, due)
    ends = ends_of(order, seconds)
    assert sorted(order) == list(range(len(seconds)))
    for place, own in enumerate(members):
        for member in own:
            if due[member] >= given_ends[place]:
                assert ends[place] <= due[member] * SLACK


@given(batches(most=5, requests_each=1))
def test_single_requests_wait_least_of_all_fair_orders(batch):
    seconds, members = batch
    order = earliest_answers(seconds, members, never(members))
    fair = [
        other for other in permutations(range(len(seconds))) if is_fair(other, seconds, members)
    ]
    least = min(waited(other, seconds, members) for other in fair)
    assert waited(order, seconds, members) <= least * SLACK


def test_a_deadline_precedes_fairness():
    # The given order meets the deadline of the last request to arrive; the first then waits more
    # than twice as long as it would have.
    seconds, members = [1.0, 0.1], [(1,), (0,)]
    order = earliest_answers(seconds, members, [inf, 1.05])
    assert order == [0, 1]
    assert not is_fair(order, seconds, members)
