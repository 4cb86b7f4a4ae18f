"""The decisions of the pool, without threads; time is a number."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ge_runtime.testing import ManualClock
from ge_runtime.workspace.arbiter import Arbiter, Outcome, Waiter

CAPACITY = 100
ALIGNMENT = 4
QUEUE_LIMIT = 6


def arbiter(queue_limit=QUEUE_LIMIT):
    return Arbiter(CAPACITY, alignment=ALIGNMENT, queue_limit=queue_limit)


def asked(pool, nbytes, now=0.0, **more):
    waiter = Waiter(nbytes, more.pop("owner", "model"), **more)
    pool.request(waiter, now)
    return waiter


def outcomes(*waiters):
    return [waiter.outcome.name for waiter in waiters]


def test_methods_return_the_waiters_that_stop_waiting():
    pool = arbiter()
    asked(pool, 60)
    late, small = asked(pool, 60, now=3.0, deadline=4.0), asked(pool, 20, now=3.5)
    newcomer = Waiter(100, "model")
    assert list(pool.request(newcomer, 5.0)) == [late, small]
    assert outcomes(late, small, newcomer) == ["TIMED_OUT", "GRANTED", "WAITING"]
    assert (late.waited_s, small.waited_s) == (2.0, 1.5)


class ArbiterMachine(RuleBasedStateMachine):
    """Compares the arbiter with the definition of the order, on lists of waiters."""

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.arbiter = arbiter()
        self.waiters = []  # in order of arrival
        self.waiting = []  # in order of arrival
        self.patience = {}  # waiter to the number of releases until it must be granted
        self.granted = 0
        self.waited = 0

    def live(self):
        return [waiter for waiter in self.waiters if waiter.outcome is Outcome.GRANTED]

    @rule(
        nbytes=st.sampled_from([0, 7, 30, 60, CAPACITY, CAPACITY, CAPACITY + 1]),
        owner=st.sampled_from(["a", "b", "c"]),
        seconds=st.sampled_from([math.inf, math.inf, math.inf, 0.0, 1.0]),
    )
    def ask(self, nbytes, owner, seconds):
        now = self.clock.now()
        waiter = Waiter(nbytes, owner, now + seconds)
        expiring = [w for w in self.waiting if w.deadline <= now]
        ahead = len(self.live()) + len(self.waiting)
        self.waiters.append(waiter)
        ended = list(self.arbiter.request(waiter, now))
        if nbytes > CAPACITY:
            assert waiter.outcome is Outcome.NEVER_FITS
        elif seconds == 0:
            assert waiter.outcome is Outcome.TIMED_OUT
        else:
            assert waiter.outcome in (Outcome.GRANTED, Outcome.WAITING, Outcome.FULL)
            room = len(self.waiting) - len(expiring) < QUEUE_LIMIT
            assert room or waiter.outcome is not Outcome.WAITING
            assert not room or waiter.outcome is not Outcome.FULL
        if waiter.outcome is Outcome.WAITING or waiter in ended:
            self.waiting.append(waiter)
            self.waited += waiter.outcome is Outcome.WAITING
            self.patience[waiter] = ahead
        elif waiter.outcome is Outcome.GRANTED:
            self.granted += 1
        self.follow(ended)

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def release(self, data):
        waiter = data.draw(st.sampled_from(self.live()))
        self.count_release()
        self.follow(self.arbiter.release(waiter, self.clock.now()))
        assert waiter.outcome is Outcome.RELEASED

    @precondition(lambda self: self.waiting or self.live())
    @rule(data=st.data())
    def withdraw(self, data):
        waiter = data.draw(st.sampled_from([*self.waiting, *self.live()]))
        if waiter.outcome is Outcome.GRANTED:
            self.count_release()
        self.follow(self.arbiter.withdraw(waiter, self.clock.now()))
        assert waiter.outcome is Outcome.CANCELLED

    @rule(data=st.data())
    def end_what_has_ended(self, data):
        going_on = (Outcome.GRANTED, Outcome.WAITING)
        if ended := [waiter for waiter in self.waiters if waiter.outcome not in going_on]:
            waiter = data.draw(st.sampled_from(ended))
            before = waiter.outcome
            assert not self.arbiter.release(waiter, self.clock.now())
            assert not self.arbiter.withdraw(waiter, self.clock.now())
            assert waiter.outcome is before

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0]))
    def time_goes_by(self, seconds):
        self.clock.advance(seconds)
        self.follow(self.arbiter.expire(self.clock.now()))
        assert all(waiter.deadline > self.clock.now() for waiter in self.waiting)

    def count_release(self):
        for waiter in self.waiting:
            self.patience[waiter] -= 1

    def follow(self, ended):
        """Note the waiters that stopped waiting, in order."""
        for waiter in ended:
            if waiter.outcome is Outcome.GRANTED:
                assert waiter is self.waiting[0]
                self.granted += 1
            self.waiting.remove(waiter)

    @invariant()
    def who_waits_is_known_and_no_one_is_forgotten(self):
        assert [c for c in self.waiters if c.outcome is Outcome.WAITING] == self.waiting

    @invariant()
    def live_leases_lie_apart_inside_and_aligned(self):
        end = 0
        for waiter in sorted(self.live(), key=lambda waiter: waiter.offset):
            assert waiter.offset >= end
            assert waiter.offset % ALIGNMENT == 0
            end = waiter.offset + max(1, waiter.nbytes)
        assert end <= CAPACITY

    @invariant()
    def the_head_of_the_queue_waits_only_for_bytes(self):
        if not self.waiting:
            return
        head = self.waiting[0]
        assert not any(
            start + -start % ALIGNMENT + max(1, head.nbytes) <= end for start, end in self.gaps()
        )

    def gaps(self):
        start = 0
        for waiter in sorted(self.live(), key=lambda waiter: waiter.offset):
            yield start, waiter.offset
            start = waiter.offset + max(1, waiter.nbytes)
        yield start, CAPACITY

    @invariant()
    def no_waiter_waits_for_more_releases_than_were_ahead_of_it(self):
        assert all(self.patience[waiter] > 0 for waiter in self.waiting)

    @invariant()
    def statistics_add_up(self):
        stats, live = self.arbiter.stats(), self.live()
        leased = sum(max(1, waiter.nbytes) for waiter in live)
        ended = [waiter.outcome for waiter in self.waiters]
        waits = [
            waiter.waited_s for waiter in self.patience if waiter.outcome is not Outcome.WAITING
        ]
        assert self.arbiter.idle == (not live)
        assert (stats.leased, stats.waiting) == (leased, len(self.waiting))
        assert leased <= stats.peak <= CAPACITY
        assert (stats.granted, stats.waited) == (self.granted, self.waited)
        assert stats.timeouts == ended.count(Outcome.TIMED_OUT)
        assert stats.cancelled == ended.count(Outcome.CANCELLED)
        assert stats.refused == ended.count(Outcome.NEVER_FITS) + ended.count(Outcome.FULL)
        assert (stats.wait_s, stats.longest_wait_s) == (sum(waits), max(waits, default=0))
        assert stats.largest_free == max(end - start for start, end in self.gaps())
        held = {owner: (held.leases, held.nbytes) for owner, held in stats.by_owner.items()}
        assert held == {
            owner: (len(sizes), sum(sizes))
            for owner in {waiter.owner for waiter in live}
            for sizes in [[waiter.nbytes for waiter in live if waiter.owner == owner]]
        }

    def teardown(self):
        while live := self.live():
            self.count_release()
            self.follow(self.arbiter.release(live[0], self.clock.now()))
        assert self.waiting == []
        assert self.arbiter.stats().largest_free == CAPACITY


TestArbiterMachine = ArbiterMachine.TestCase
TestArbiterMachine.settings = settings(max_examples=60, stateful_step_count=50)
TestArbiterMachine.pytestmark = pytest.mark.brute_force


def test_closing_ends_all_waits_and_keeps_live_leases():
    pool = arbiter()
    holder, waiter = asked(pool, 100), asked(pool, 1)
    assert list(pool.close(2.0)) == [waiter]
    assert outcomes(holder, waiter, asked(pool, 1)) == ["GRANTED", "CLOSED", "CLOSED"]
    assert (pool.closed, pool.idle, pool.stats().refused) == (True, False, 2)
    pool.release(holder, 3.0)
    assert pool.idle
