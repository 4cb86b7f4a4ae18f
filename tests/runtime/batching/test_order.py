"""The order of executions with early answers: its bounds, and the least waiting times."""

from itertools import accumulate, permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.scheduling.early_answers import FAIRNESS, earliest_answers

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


def test_the_least_time_per_request_is_first():
    seconds, members = [0.3, 0.4, 0.2], [(1,), (0, 3, 4, 5), (2,)]
    assert earliest_answers(seconds, members, never(members)) == [1, 2, 0]


def test_a_long_execution_that_arrived_first_is_not_starved():
    # Alone it would end after 1 s: at the latest it ends after FAIRNESS seconds.
    seconds, members = [1.0, *[0.3] * 6], [(place,) for place in range(7)]
    order = earliest_answers(seconds, members, never(members))
    assert order.index(0) == int((FAIRNESS - 1.0) / 0.3)


def test_a_deadline_precedes_shorter_executions():
    seconds, members = [1.0, 0.1, 0.1], [(2,), (0,), (1,)]
    assert earliest_answers(seconds, members, [inf, inf, 1.05]) == [0, 1, 2]


def test_a_deadline_precedes_fairness():
    # The given order meets the deadline of the last request to arrive; the first then waits more
    # than twice as long as it would have.
    seconds, members = [1.0, 0.1], [(1,), (0,)]
    order = earliest_answers(seconds, members, [inf, 1.05])
    assert order == [0, 1]
    assert not is_fair(order, seconds, members)


def test_an_impossible_deadline_delays_no_other_request():
    seconds, members = [1.0, 0.1], [(0,), (1,)]
    assert earliest_answers(seconds, members, [0.5, inf]) == [1, 0]


@pytest.mark.parametrize("count", [0, 1])
def test_there_is_one_order_of_one(count):
    assert earliest_answers([1.0] * count, [(0,)] * count, [inf] * count) == list(range(count))
