"""What is decided about one request does not depend on how many others wait."""

import sys

import pytest

from benchmarks.queues import QUEUES, Stage

COUNT = 640  # of requests, in whole batches of all queues


def calls(name, depth):
    """How many calls, of Python and of C, so many requests take at that depth."""
    stage = Stage(name, depth, 2 * COUNT)
    made = 0

    def count(frame, event, argument):
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        gone = stage.play(COUNT)
    finally:
        sys.setprofile(None)
    return made / gone


@pytest.mark.parametrize("name", QUEUES)
def test_a_deeper_queue_takes_no_more_calls_for_a_request(name):
    assert calls(name, 6_400) < 1.2 * calls(name, 128)
