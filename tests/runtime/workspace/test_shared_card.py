"""Two models that do not fit on one card side by side, and do with a pool.

32 GB card; 18 GB of weights; workspaces of 8 GB and 6 GB. All bytes are simulated.
"""

from threading import Lock

import pytest
from runtime.support.threads import Beside

from ge_runtime.devices import Device
from ge_runtime.errors import NeverFits, OutOfMemory
from ge_runtime.testing import ManualClock
from ge_runtime.workspace import PoolRegistry

GB = 2**30
WORKSPACE = {"ranker": 8 * GB, "encoder": 6 * GB}
POOL = 12 * GB
THREADS, REQUESTS = 3, 40  # threads of each model, requests of each thread


class PaperCard(Device[None]):
    """A card that only counts its memory: any size fits on any machine."""

    kind = "npu"

    def _obtain(self, nbytes):
        return None

    def _release(self, memory):
        pass


@pytest.fixture
def card():
    """Return the card with all memory that both models always need."""
    card = PaperCard("npu:0", 32 * GB)
    card.allocate("weights of ranker", 11 * GB)
    card.allocate("weights of encoder", 7 * GB)
    card.allocate("context, inputs and outputs", GB)
    return card


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def members(clock):
    """Return the membership of each model in the card's pool."""
    pools = PoolRegistry(clock)
    members = {model: pools.join("npu:0", POOL, model) for model in WORKSPACE}
    yield members
    for member in members.values():
        member.leave()


def test_side_by_side_the_second_model_is_refused(card):
    card.allocate("workspace of ranker", WORKSPACE["ranker"])
    with pytest.raises(OutOfMemory) as raised:
        card.allocate("workspace of encoder", WORKSPACE["encoder"])
    assert str(raised.value) == (
        "npu:0: 'workspace of encoder': found 6,442,450,944 bytes wanted, expected at most "
        "5,368,709,120, which are free of 34,359,738,368"
    )


def test_with_a_pool_both_models_answer_all_requests_under_load(card, clock, members):
    card.allocate("workspace pool", POOL)
    card.freeze()
    lock, running, answers = Lock(), [], []

    def serve(model, thread):
        pool = members[model].pool
        pool.require(WORKSPACE[model], model)
        for request in range(REQUESTS):
            with pool.lease(WORKSPACE[model], owner=model) as lease:
                mine = (lease.offset, lease.offset + lease.nbytes)
                with lock:
                    assert not any(mine[0] < end and start < mine[1] for start, end in running)
                    assert mine[1] <= POOL
                    running.append(mine)
                with lock:
                    running.remove(mine)
                    answers.append((model, thread, request))

    # No other lease fits beside this one, so the load starts with all threads in the queue.
    first = members["ranker"].pool.lease(POOL - 5 * GB, owner="warm-up")
    threads = [Beside(serve, model, thread) for model in WORKSPACE for thread in range(THREADS)]
    clock.until_waiting(len(threads))
    first.release()
    for thread in threads:
        thread.result()

    assert sorted(answers) == sorted(
        (model, thread, request)
        for model in WORKSPACE
        for thread in range(THREADS)
        for request in range(REQUESTS)
    )
    stats = members["ranker"].pool.stats()
    assert stats.granted == 1 + len(answers)
    assert stats.waited >= len(threads)
    assert stats.peak <= POOL
    assert (stats.leased, stats.waiting, stats.largest_free) == (0, 0, POOL)
    assert (stats.timeouts, stats.cancelled, stats.refused) == (0, 0, 0)
    assert card.used_bytes == (18 + 1 + 12) * GB <= card.capacity_bytes
    assert card.allocations_after_freeze == 0


def test_the_smaller_model_runs_twice_at_once_and_the_larger_alone(members):
    pool = members["encoder"].pool
    with pool.lease(6 * GB, owner="encoder"), pool.lease(6 * GB, owner="encoder"):
        assert pool.stats().leased == POOL
    with pool.lease(8 * GB, owner="ranker"):
        assert pool.stats().largest_free == 4 * GB


def test_a_model_that_can_never_fit_is_refused_at_load(members):
    with pytest.raises(NeverFits) as raised:
        members["ranker"].pool.require(13 * GB, "ranker at 64x512")
    assert str(raised.value) == (
        "workspace of npu:0: ranker at 64x512: found 13,958,643,712 bytes wanted, expected at most "
        "12,884,901,888, the pool's capacity"
    )
