"""The schedulers' queues answer random events like the real server, on a simulated clock.

`tests/contract/queue_events.py` draws the scenarios and records the real server's answers.
"""

from __future__ import annotations

import pytest
from contract.queue_events import differences, recorded, simulated

SCENARIOS, ANSWERS = recorded()

_RESTS = "after a batch Triton looks at the other requests up to 0.5 s later"
_EMPTIED = "after all requests have expired Triton waits for as many rows as they lacked"
_TWO = "Triton looks for the second instance's batch before the first instance has begun"
_PREPARED = "Triton executes a cancelled request of a prepared batch"
_REMOVED = "an instance that is removed may execute one more request in Triton"
_EXPIRED = "Triton executes a request that has expired only when the next request arrives"
#: Scenarios with other answers, by the reason.
DIFFERENCES: dict[tuple[str, int], str] = {
    ("delays_free", 9): _RESTS,
    ("leaves", 10): _EXPIRED,
    ("plain", 11): _PREPARED,
    ("rejects", 1): _EMPTIED,
    ("rejects", 6): _EMPTIED,
    ("shrinks", 1): _REMOVED,
    ("small", 0): _RESTS,
    ("small", 6): _RESTS,
    ("two_delay", 2): _TWO,
}


@pytest.mark.parametrize("key", sorted(ANSWERS.keys() - DIFFERENCES.keys()), ids=str)
def test_events_of_a_queue_have_the_recorded_answers(key: tuple[str, int]):
    assert not differences(ANSWERS[key], simulated(key[0], SCENARIOS[key]))


@pytest.mark.parametrize("key", DIFFERENCES, ids=str)
def test_each_accepted_difference_still_exists(key: tuple[str, int]):
    assert differences(ANSWERS[key], simulated(key[0], SCENARIOS[key]))
