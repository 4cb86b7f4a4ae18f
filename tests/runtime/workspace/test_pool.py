"""The threads around the arbiter: blocking, waking, withdrawing, and exceptions."""

import logging
import math
from threading import Lock

import pytest
from runtime.support.threads import Beside

from ge_runtime.clock import SystemClock
from ge_runtime.errors import NeverFits, PoolClosed, PoolFull, PoolTimeout
from ge_runtime.testing import ManualClock
from ge_runtime.workspace import Held, WorkspacePool

CAPACITY = 10_000


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def pool(clock):
    """Yield a pool; all leases must be released when the test ends."""
    pool = WorkspacePool(CAPACITY, clock, queue_limit=3, name="pool")
    yield pool
    stats = pool.stats()
    assert (stats.leased, stats.waiting, stats.largest_free) == (0, 0, CAPACITY)
    clock.until_waiting(0)


def text_of(fault, call, *args, **kwargs):
    with pytest.raises(fault) as raised:
        call(*args, **kwargs)
    return str(raised.value)


def test_leases_do_not_overlap_and_have_readable_texts(pool):
    with pool.lease(3_000, owner="a") as first, pool.lease(1, owner="b") as second:
        assert (first.offset, first.nbytes, first.owner, first.waited_s) == (0, 3_000, "a", 0)
        assert (second.offset, second.nbytes) == (3_072, 1)
        assert repr(second) == "<Lease of b: bytes 3,072 to 3,073, held>"
    assert repr(second) == "<Lease of b: bytes 3,072 to 3,073, released>"


def test_a_lease_ends_with_its_with_block(pool):
    with pytest.raises(ZeroDivisionError), pool.lease(CAPACITY, owner="a"):
        raise ZeroDivisionError
    assert pool.stats().leased == 0


def test_a_second_release_does_nothing(pool):
    first = pool.lease(CAPACITY, owner="a")
    first.release()
    with pool.lease(CAPACITY, owner="b") as second:
        assert second.offset == first.offset
        first.release()
        assert pool.stats().by_owner == {"b": Held(1, CAPACITY)}


def test_a_waiter_gets_its_lease_when_the_bytes_are_released(pool, clock):
    holder = pool.lease(CAPACITY, owner="a")
    waiter = Beside(pool.lease, 500, owner="b")
    clock.until_waiting(1)
    clock.advance(2.5)
    holder.release()
    with waiter.result() as lease:
        assert (lease.owner, lease.waited_s) == ("b", 2.5)
    assert (pool.stats().waited, pool.stats().wait_s) == (1, 2.5)


# -- deadlines and interrupts --------------------------------------------------------------------


def test_a_wait_ends_at_its_deadline_and_not_before(pool, clock):
    with pool.lease(CAPACITY, owner="a"):
        waiter = Beside(pool.lease, 500, deadline=5.0, owner="b")
        clock.until_waiting(1)
        clock.advance(4.75)
        clock.until_waiting(1)
        clock.advance(0.25)
        assert text_of(PoolTimeout, waiter.result) == (
            "pool: b: found less than 500 bytes free for 5.000 s, expected more before the deadline"
        )
    assert pool.stats().timeouts == 1


def test_a_waiter_that_is_interrupted_leaves_nothing_behind():
    class Interrupted(SystemClock):
        @staticmethod
        def wait(condition, until):
            raise KeyboardInterrupt

    pool = WorkspacePool(CAPACITY, Interrupted(), queue_limit=3)
    with pool.lease(CAPACITY, owner="a"):
        with pytest.raises(KeyboardInterrupt):
            pool.lease(500, owner="b")
        assert pool.stats().waiting == 0


# -- refusals ------------------------------------------------------------------------------------


def test_more_than_the_capacity_never_fits(pool):
    text = "pool: b: found 10,001 bytes wanted, expected at most 10,000, the pool's capacity"
    assert text_of(NeverFits, pool.lease, 10_001, owner="b") == text
    assert text_of(NeverFits, pool.require, 10_001, "b") == text


def test_a_waiter_beyond_the_queue_limit_is_refused(clock):
    pool = WorkspacePool(CAPACITY, clock, queue_limit=1, name="pool")
    with pool.lease(CAPACITY, owner="a"):
        waiter = Beside(pool.lease, 500, owner="b")
        clock.until_waiting(1)
        assert text_of(PoolFull, pool.lease, 500, owner="c") == (
            "pool: c: found 1 leases waiting, expected fewer: that is the limit (queue_limit)"
        )
    waiter.result().release()


def test_negative_sizes_are_refused(pool):
    with pytest.raises(ValueError, match="b: found -1 bytes, expected 0 or more"):
        pool.lease(-1, owner="b")


# -- closing -------------------------------------------------------------------------------------


def test_a_closed_pool_refuses_waiters_and_newcomers(pool, clock, caplog):
    with pool.lease(CAPACITY, owner="a"):
        waiter = Beside(pool.lease, 500, owner="b")
        clock.until_waiting(1)
        with caplog.at_level(logging.WARNING):
            assert not pool.close()
        text = "pool: b: found the pool closed, expected it open"
        assert text_of(PoolClosed, waiter.result) == text
        assert text_of(PoolClosed, pool.lease, 1, owner="b") == text
    assert caplog.messages == ["pool: closed while leases are held by a (10,000 bytes)"]
    assert pool.close()


def test_closing_waits_for_all_leases(pool, clock):
    first, second = pool.lease(500, owner="a"), pool.lease(500, owner="b")
    closing = Beside(pool.close, math.inf)
    clock.until_waiting(1)
    first.release()
    assert not closing.is_done()
    second.release()
    assert closing.result()


# -- for people ----------------------------------------------------------------------------------


def test_repr_and_table_show_use_and_waits(pool, clock):
    first, second = pool.lease(3_000, owner="encoder"), pool.lease(2_000, owner="ranker")
    waiter = Beside(pool.lease, 8_000, owner="encoder")
    clock.until_waiting(1)
    assert repr(pool) == (
        "<WorkspacePool pool: open, 5,000 of 10,000 bytes in 2 lease(s), 1 waiting>"
    )
    assert pool.stats().table()[-4] == "waited             1  for 0.000 s in total, 0.000 s at most"
    clock.advance(0.125)
    first.release()
    second.release()
    with waiter.result():
        assert pool.stats().table() == [
            "capacity      10,000  bytes",
            "leased         8,000  bytes",
            "  encoder      8,000  bytes in 1 lease(s)",
            "peak           8,000  bytes",
            "largest free   2,000  bytes",
            "waiting            0",
            "granted            3",
            "waited             1  for 0.125 s in total, 0.125 s at most",
            "timeouts           0",
            "cancelled          0",
            "refused            0",
        ]


# -- under load ----------------------------------------------------------------------------------


def test_many_threads_never_share_a_byte(clock):
    pool = WorkspacePool(CAPACITY, clock, queue_limit=6)
    lock, live = Lock(), []

    def churn(seed):
        for turn in range(60):
            nbytes = (seed * 7_919 + turn * 104_729) % CAPACITY + 1
            with pool.lease(nbytes, owner=f"thread {seed}") as lease:
                mine = (lease.offset, lease.offset + lease.nbytes)
                with lock:
                    assert not any(mine[0] < end and start < mine[1] for start, end in live)
                    live.append(mine)
                with lock:
                    live.remove(mine)

    with pool.lease(CAPACITY, owner="the test, until all have come"):
        threads = [Beside(churn, seed) for seed in range(6)]
        clock.until_waiting(6)
    for thread in threads:
        thread.result()
    stats = pool.stats()
    assert (stats.granted, stats.leased, stats.waiting) == (361, 0, 0)
    assert stats.largest_free == CAPACITY
