"""Tests of the delays between starts of a process, with time as a number."""

from hypothesis import given
from hypothesis import strategies as st

from reference_server.backends.process_host.instance import Backoff

S = 1_000_000_000


def test_each_pause_is_twice_as_long_up_to_a_limit():
    backoff = Backoff(first_s=1, limit_s=5)
    assert [backoff.ended(0) // S for _ in range(5)] == [1, 2, 4, 5, 5]


def test_a_long_run_resets_the_delay():
    backoff = Backoff(first_s=1, limit_s=5)
    backoff.ended(0)
    backoff.ended(0)
    backoff.started(10 * S)
    assert backoff.ended(15 * S + 1) == S


def test_a_short_run_does_not_reset_the_delay():
    backoff = Backoff(first_s=1, limit_s=5)
    backoff.ended(0)
    backoff.started(10 * S)
    assert backoff.ended(15 * S) == 2 * S


def test_a_failed_start_does_not_reset_the_delay():
    backoff = Backoff(first_s=1, limit_s=5)
    backoff.started(0)
    assert backoff.ended(1) == S
    assert backoff.ended(60 * S) == 2 * S


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=12))
def test_pauses_stay_within_their_bounds(story):
    backoff = Backoff(first_s=1, limit_s=5)
    now = 0
    for starts, lasts_s in story:
        if starts:
            backoff.started(now)
        now += lasts_s * S
        assert S <= backoff.ended(now) <= 5 * S
