"""The pool's decisions by themselves: no threads, and time is a number."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ge_runtime.testing import ManualClock
from ge_runtime.workspace.arbiter import Arbiter
from ge_runtime.workspace.lease import Claim, Outcome

CAPACITY = 100
ALIGNMENT = 4
QUEUE_LIMIT = 6
OVERTAKINGS = 1


def arbiter(queue_limit=QUEUE_LIMIT, overtakings=OVERTAKINGS):
    return Arbiter(CAPACITY, alignment=ALIGNMENT, queue_limit=queue_limit, overtakings=overtakings)


def asked(pool, nbytes, now=0.0, **more):
    claim = Claim(nbytes, more.pop("owner", "model"), **more)
    pool.ask(claim, now)
    return claim


def outcomes(*claims):
    return [claim.outcome.name for claim in claims]


class ArbiterMachine(RuleBasedStateMachine):
    """Against the definition of the order, kept in lists of claims."""

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.arbiter = arbiter()
        self.claims = []  # in order of arrival
        self.waiting = []  # in order of arrival
        self.overtaken = {}  # of those that waited: how often
        self.patience = {}  # of those that waited: releases until they must have been granted
        self.granted = 0
        self.waited = 0

    def live(self):
        return [claim for claim in self.claims if claim.outcome is Outcome.GRANTED]

    @rule(
        nbytes=st.sampled_from([0, 7, 30, 60, CAPACITY, CAPACITY, CAPACITY + 1]),
        priority=st.integers(0, 2),
        seconds=st.sampled_from([math.inf, math.inf, math.inf, 0.0, 1.0]),
    )
    def ask(self, nbytes, priority, seconds):
        now = self.clock.now()
        claim = Claim(nbytes, f"model {priority}", priority, now + seconds)
        expiring = [w for w in self.waiting if w.deadline <= now]
        ahead = len(self.live()) + len(self.waiting)
        self.claims.append(claim)
        settled = list(self.arbiter.ask(claim, now))
        if nbytes > CAPACITY:
            assert claim.outcome is Outcome.NEVER_FITS
        elif seconds == 0:
            assert claim.outcome is Outcome.TIMED_OUT
        else:
            assert claim.outcome in (Outcome.GRANTED, Outcome.WAITING, Outcome.FULL)
            room = len(self.waiting) - len(expiring) < QUEUE_LIMIT
            assert room or claim.outcome is not Outcome.WAITING
            assert not room or claim.outcome is not Outcome.FULL
        if claim.outcome is Outcome.WAITING or claim in settled:
            self.waiting.append(claim)
            self.waited += claim.outcome is Outcome.WAITING
            self.overtaken[claim] = 0
            self.patience[claim] = ahead + OVERTAKINGS
        elif claim.outcome is Outcome.GRANTED:
            self.granted += 1
        self.follow(settled)

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def release(self, data):
        claim = data.draw(st.sampled_from(self.live()))
        self.count_release()
        self.follow(self.arbiter.release(claim, self.clock.now()))
        assert claim.outcome is Outcome.RELEASED

    @precondition(lambda self: self.waiting or self.live())
    @rule(data=st.data())
    def withdraw(self, data):
        claim = data.draw(st.sampled_from([*self.waiting, *self.live()]))
        if claim.outcome is Outcome.GRANTED:
            self.count_release()
        self.follow(self.arbiter.withdraw(claim, self.clock.now()))
        assert claim.outcome is Outcome.CANCELLED

    @rule(data=st.data())
    def end_what_has_ended(self, data):
        going_on = (Outcome.GRANTED, Outcome.WAITING)
        if ended := [claim for claim in self.claims if claim.outcome not in going_on]:
            claim = data.draw(st.sampled_from(ended))
            before = claim.outcome
            assert not self.arbiter.release(claim, self.clock.now())
            assert not self.arbiter.withdraw(claim, self.clock.now())
            assert claim.outcome is before

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0]))
    def time_goes_by(self, seconds):
        self.clock.advance(seconds)
        self.follow(self.arbiter.expire(self.clock.now()))
        assert all(claim.deadline > self.clock.now() for claim in self.waiting)

    def count_release(self):
        for claim in self.waiting:
            self.patience[claim] -= 1

    def follow(self, settled):
        """What happened to those that waited, one after the other."""
        for claim in settled:
            index = self.waiting.index(claim)
            if claim.outcome is Outcome.GRANTED:
                for passed in self.waiting[:index]:
                    assert passed.priority < claim.priority
                    self.overtaken[passed] += 1
                self.granted += 1
            del self.waiting[index]

    @invariant()
    def who_waits_is_known_and_no_one_is_forgotten(self):
        assert [c for c in self.claims if c.outcome is Outcome.WAITING] == self.waiting

    @invariant()
    def live_leases_lie_apart_inside_and_aligned(self):
        end = 0
        for claim in sorted(self.live(), key=lambda claim: claim.offset):
            assert claim.offset >= end
            assert claim.offset % ALIGNMENT == 0
            end = claim.offset + max(1, claim.nbytes)
        assert end <= CAPACITY

    @invariant()
    def the_head_of_the_queue_waits_only_for_bytes(self):
        if not self.waiting:
            return
        tired = [index for index, c in enumerate(self.waiting) if self.overtaken[c] >= OVERTAKINGS]
        first = self.waiting[: tired[0] + 1] if tired else self.waiting
        head = max(first, key=lambda claim: claim.priority)  # the earliest of equals
        assert not any(
            start + -start % ALIGNMENT + max(1, head.nbytes) <= end for start, end in self.gaps()
        )

    def gaps(self):
        start = 0
        for claim in sorted(self.live(), key=lambda claim: claim.offset):
            yield start, claim.offset
            start = claim.offset + max(1, claim.nbytes)
        yield start, CAPACITY

    @invariant()
    def nobody_is_overtaken_too_often_or_waits_too_long(self):
        for claim in self.waiting:
            assert self.overtaken[claim] == claim.overtaken <= OVERTAKINGS
            assert self.patience[claim] > 0

    @invariant()
    def statistics_add_up(self):
        stats, live = self.arbiter.stats(), self.live()
        leased = sum(max(1, claim.nbytes) for claim in live)
        ended = [claim.outcome for claim in self.claims]
        waits = [claim.waited_s for claim in self.overtaken if claim.outcome is not Outcome.WAITING]
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
            for owner in {claim.owner for claim in live}
            for sizes in [[claim.nbytes for claim in live if claim.owner == owner]]
        }

    def teardown(self):
        while live := self.live():
            self.count_release()
            self.follow(self.arbiter.release(live[0], self.clock.now()))
        assert self.waiting == []
        assert self.arbiter.stats().largest_free == CAPACITY


TestArbiterMachine = ArbiterMachine.TestCase
TestArbiterMachine.settings = settings(max_examples=60, stateful_step_count=50)


def test_equals_are_served_in_order_of_arrival():
    pool = arbiter()
    first = asked(pool, 100)
    others = [asked(pool, 60), asked(pool, 60), asked(pool, 60)]
    assert outcomes(*others) == ["WAITING"] * 3
    for position, holder in enumerate([first, *others[:-1]]):
        assert list(pool.release(holder, 0.0)) == [others[position]]


def test_a_small_claim_does_not_pass_a_large_one_that_waits():
    pool = arbiter()
    asked(pool, 60)
    large, small = asked(pool, 80), asked(pool, 10)
    assert outcomes(large, small) == ["WAITING", "WAITING"]


def test_a_higher_priority_goes_first_even_if_it_has_just_come():
    pool = arbiter()
    asked(pool, 60)
    large, urgent = asked(pool, 80), asked(pool, 10, priority=1)
    assert outcomes(large, urgent) == ["WAITING", "GRANTED"]


def test_a_claim_is_overtaken_so_often_and_no_more():
    pool = arbiter(overtakings=2)
    holder = asked(pool, 100)
    patient = asked(pool, 100)
    urgent = [asked(pool, 100, priority=1) for _ in range(3)]
    served = []
    for _ in range(4):
        (holder,) = pool.release(holder, 0.0)
        served.append(holder)
    assert served == [*urgent[:2], patient, urgent[2]]


def test_those_before_a_claim_that_is_overtaken_no_more_keep_their_priority():
    pool = arbiter(overtakings=1)
    first = asked(pool, 100)
    middle, low, urgent = (asked(pool, 100, priority=p) for p in (1, 0, 2))
    pool.release(first, 0.0)
    latest = asked(pool, 100, priority=3)
    assert outcomes(urgent, middle, low, latest) == ["GRANTED", *["WAITING"] * 3]
    assert list(pool.release(urgent, 0.0)) == [middle]
    assert list(pool.release(middle, 0.0)) == [low]


def test_without_overtakings_priorities_do_not_matter():
    pool = arbiter(overtakings=0)
    holder = asked(pool, 100)
    early, urgent = asked(pool, 100), asked(pool, 100, priority=9)
    assert list(pool.release(holder, 0.0)) == [early]
    assert outcomes(urgent) == ["WAITING"]


def test_whoever_asks_learns_whose_waiting_that_ended():
    pool = arbiter()
    asked(pool, 60)
    late, small = asked(pool, 60, now=3.0, deadline=4.0), asked(pool, 20, now=3.5)
    newcomer = Claim(100, "model")
    assert list(pool.ask(newcomer, 5.0)) == [late, small]
    assert outcomes(late, small, newcomer) == ["TIMED_OUT", "GRANTED", "WAITING"]
    assert (late.waited_s, small.waited_s) == (2.0, 1.5)


def test_bytes_are_not_given_to_one_whose_deadline_has_passed():
    pool = arbiter()
    holder = asked(pool, 100)
    late, other = asked(pool, 100, deadline=5.0), asked(pool, 100)
    assert list(pool.release(holder, 5.0)) == [late, other]
    assert outcomes(late, other) == ["TIMED_OUT", "GRANTED"]


def test_those_behind_are_served_when_the_head_leaves():
    pool = arbiter()
    asked(pool, 60)
    large, small = asked(pool, 80), asked(pool, 10)
    assert list(pool.withdraw(large, 0.0)) == [large, small]
    assert outcomes(large, small) == ["CANCELLED", "GRANTED"]


def test_a_place_in_the_queue_is_free_once_its_claim_has_expired():
    pool = arbiter(queue_limit=1)
    asked(pool, 100)
    expiring = asked(pool, 1, deadline=1.0)
    assert outcomes(asked(pool, 1, now=0.5)) == ["FULL"]
    assert outcomes(asked(pool, 1, now=1.0), expiring) == ["WAITING", "TIMED_OUT"]


def test_one_that_can_be_served_at_once_needs_no_place_in_the_queue():
    pool = arbiter(queue_limit=1)
    asked(pool, 60)
    assert outcomes(asked(pool, 80), asked(pool, 10, priority=1)) == ["WAITING", "GRANTED"]


def test_leases_of_nothing_have_places_of_their_own():
    pool = arbiter()
    first, second = asked(pool, 0), asked(pool, 0)
    assert first.offset != second.offset


def test_closing_ends_all_waits_and_leaves_what_is_live():
    pool = arbiter()
    holder, waiter = asked(pool, 100), asked(pool, 1)
    assert list(pool.close(2.0)) == [waiter]
    assert outcomes(holder, waiter, asked(pool, 1)) == ["GRANTED", "CLOSED", "CLOSED"]
    assert (pool.closed, pool.idle, pool.stats().refused) == (True, False, 2)
    pool.release(holder, 3.0)
    assert pool.idle
