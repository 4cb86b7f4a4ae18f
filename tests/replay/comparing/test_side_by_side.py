"""Verdicts on requests that both servers answered: failures, differences and noise."""

import dataclasses

import numpy as np
import pytest
from replay.traffic import inputs, request, response

from triton_replay.capture.files import Exchange
from triton_replay.comparing.paired import MIN_REQUESTS
from triton_replay.comparing.side_by_side import Results, differing, more_errors
from triton_replay.comparing.tolerances import parse_tolerances
from triton_replay.errors import ReplayError

MS = 1_000_000
COUNT = 3 * MIN_REQUESTS


def collected(b=lambda n, y: y, again=lambda n, y: y, tolerance=(), *, learn=False, b_again=None):
    """Results of a server that doubles its input, and of others that change its answers."""
    results = Results(parse_tolerances(tolerance), learn=learn)
    for number, x in enumerate(inputs(COUNT)):
        asked = request(number, x)

        def ask(change, asked=asked, number=number, x=x, took=2 * MS):
            found = change(number, 2 * x)
            answer = response(number, found) if isinstance(found, np.ndarray) else found
            return Exchange(asked, answer), took + number % 7

        of_b = [ask(b), *([ask(b_again)] if b_again else [])]
        results.add([ask(lambda n, y: y)] * len(of_b), of_b, ask(again))
    return results


def failing(number, y):
    return dataclasses.replace(response(number, y), status=500, body=b"{}", body_size=2)


def test_a_failing_server_is_not_faster():
    every_other = lambda n, y: failing(n, y) if n % 2 else y  # noqa: E731
    (verdict,) = collected(b=every_other).judged(0.05)
    assert verdict.failures["B"] == {"status 500": COUNT // 2}
    assert verdict.failures["A"] == {}
    assert more_errors([verdict]) == COUNT // 2
    assert verdict.timed == COUNT - COUNT // 2
    assert not any(effect.verdict for effect in verdict.effects)


def test_lost_answers_count_as_failures():
    (verdict,) = collected(b=lambda n, y: None).judged(0.05)
    assert verdict.failures["B"] == {"no response": COUNT}
    assert (verdict.timed, verdict.effects) == (0, ())


def test_a_difference_that_a_has_from_itself_is_noise():
    random = lambda n, y: y + n % 3  # noqa: E731
    (verdict,) = collected(b=random, again=random).judged(0.05)
    assert verdict.groups == ()
    assert sum(len(one.requests) for one in verdict.noise) == COUNT - COUNT // 3
    assert differing([verdict]) == 0


def test_a_difference_that_is_more_frequent_than_noise_is_one():
    rare = lambda n, y: y + (n == 5)  # noqa: E731
    (verdict,) = collected(b=lambda n, y: y + 1, again=rare).judged(0.05)
    assert differing([verdict]) == COUNT
    assert {one.model for one in verdict.groups} == {"m"}
    (verdict,) = collected(b=rare).judged(0.05)
    assert differing([verdict]) == 1


def test_what_differs_between_two_answers_of_a_can_be_ignored_in_b():
    rare = lambda n, y: y + (n == 5)  # noqa: E731
    (verdict,) = collected(b=lambda n, y: y + 1, again=rare, learn=True).judged(0.05)
    assert differing([verdict]) == 0
    (verdict,) = collected(b=lambda n, y: y + 9, again=rare, learn=True).judged(0.05)
    assert differing([verdict]) == COUNT
    # Failures are never noise.
    flaky = lambda n, y: failing(n, y) if n == 5 else y  # noqa: E731
    (verdict,) = collected(b=failing, again=flaky, learn=True).judged(0.05)
    assert differing([verdict]) == COUNT


def test_a_server_that_answers_a_request_in_two_ways_is_nondeterministic():
    (verdict,) = collected(b=lambda n, y: y + 1, b_again=lambda n, y: y + 2).judged(0.05)
    (group,) = verdict.groups
    assert group.kind == "nondeterministic in B"
    assert group.condition == f"responses to equal requests differ: {COUNT} of {COUNT} pairs"
    (verdict,) = collected(b=lambda n, y: y + 1, b_again=lambda n, y: y + 1).judged(0.05)
    assert [(one.kind, one.condition) for one in verdict.groups] == [("values", "always")]


@pytest.mark.parametrize(("value", "claimed"), [(5, 0), (np.nan, 1)])
def test_noise_hides_only_kinds_that_vary_with_the_values(value, claimed):
    def rare(number, y):
        return np.full_like(y, value) if number % 5 == 0 else y

    (verdict,) = collected(b=rare, again=lambda n, y: y + n % 2).judged(0.05)
    assert len(verdict.groups) == claimed


def test_requests_that_cannot_be_repeated_are_compared_without_latency():
    results = Results(parse_tolerances(()))
    for number, x in enumerate(inputs(COUNT)):
        exchange = Exchange(request(number, x), response(number, x))
        results.add([(exchange, MS)], [(exchange, 9 * MS)], None)
    (verdict,) = results.judged(0.05)
    assert (verdict.requests, verdict.timed, verdict.noise) == (COUNT, 0, ())
    assert differing([verdict]) == 0


def test_a_tolerance_of_an_output_that_no_answer_has_is_refused():
    with pytest.raises(ReplayError, match=r"--tolerance: found z; expected .*: m/y"):
        collected(tolerance=["z:abs=1"]).judged(0.05)
    (verdict,) = collected(b=lambda n, y: y + 1, tolerance=["m/y:abs=2"]).judged(0.05)
    assert differing([verdict]) == 0
