"""The cost of a decision about a request does not depend on the number of waiting requests."""

import sys

import pytest

from benchmarks.queues import QUEUES, Stage

COUNT = 640
"""Number of requests, a multiple of all batch sizes."""


def calls(name, depth):
    """Return the calls of Python and C functions per request at a depth."""
    stage = Stage(name, depth, 2 * COUNT)
    made = 0

    def count(frame, event, argument):
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        done = stage.play(COUNT)
    finally:
        sys.setprofile(None)
    return made / done


@pytest.mark.brute_force
@pytest.mark.parametrize("name", QUEUES)
def test_a_deeper_queue_needs_no_more_calls_per_request(name):
    assert calls(name, 6_400) < 1.2 * calls(name, 128)
