"""Early answers and the counts of their waiting times, on virtual time."""

import pytest

from ge_runtime.scheduling.early_answers import SENDING_S, WORTH_SENDING, Answered, EarlyAnswers
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
