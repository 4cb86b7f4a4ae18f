"""Whose turn it is: shared resources, ranks, limits, and what must always hold."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reference_server.config.scheduler_settings import InstanceConfig, Resource
from reference_server.core.errors import Code, ServerError
from reference_server.scheduling.rate_limiter import Ledger, RateLimiter


def instance(priority=1, *, whole=False, **needs):
    resources = tuple(Resource(name, count, whole) for name, count in needs.items())
    return InstanceConfig("m_0", "CPU", priority, resources)


def turns(ledger, shares, count):
    """Who executes when all always have something to run: their places, in order."""
    running = [share for share in shares for share in ledger.ask(share)]
    order = []
    while len(order) < count:
        share = running.pop(0)
        order.append(shares.index(share))
        running += ledger.ask(share)
        running += ledger.give_back(share)
    return order


def test_instances_that_share_a_resource_take_turns():
    ledger = Ledger(None)
    assert turns(ledger, ledger.add([instance(R=1), instance(R=1)]), 6) == [0, 1, 0, 1, 0, 1]


def test_a_priority_of_three_gets_a_third_of_the_turns():
    ledger = Ledger(None)
    order = turns(ledger, ledger.add([instance(1, R=1), instance(3, R=1)]), 400)
    assert order.count(0) == 3 * order.count(1)


def test_without_limits_there_is_as_much_as_the_neediest_needs():
    ledger = Ledger(None)
    (big,) = ledger.add([instance(R=4)])
    small = ledger.add([instance(R=2)] * 3)
    assert ledger.ask(small[0]) == [small[0]]
    assert ledger.ask(small[1]) == [small[1]]
    assert ledger.ask(small[2]) == []
    assert ledger.ask(big) == []
    assert ledger.give_back(small[0]) == [small[2]]  # it waits longer, at the same rank
    assert ledger.give_back(small[1]) == []
    assert ledger.give_back(small[2]) == [big]
    assert repr(ledger) == "Ledger(0 waiting; in use: R: 4)"


def test_who_waits_is_not_starved_by_smaller_ones():
    ledger = Ledger({("R", False): 2})
    big, one, two = ledger.add([instance(R=2), instance(2, R=1), instance(2, R=1)])
    assert ledger.ask(one) == [one]
    assert ledger.ask(big) == []
    assert ledger.ask(two) == []  # there is enough for it, but it would keep the other waiting
    assert ledger.give_back(one) == [big]


def test_other_resources_do_not_wait():
    ledger = Ledger(None)
    a, b, other, free = ledger.add([instance(R=1), instance(R=1), instance(9, S=1), instance(9)])
    assert ledger.ask(a) == [a]
    assert ledger.ask(b) == []
    assert ledger.ask(other) == [other]
    assert ledger.ask(free) == [free]


def test_an_instance_that_could_never_run_is_refused():
    ledger = Ledger({("R", False): 3})
    with pytest.raises(ServerError) as caught:
        ledger.add([instance(R=3), instance(R=4)])
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        'Resource count for "R" is limited to 3 which will prevent scheduling of one or more '
        "model instances, the minimum required count is 4"
    )
    with pytest.raises(ServerError, match='"S" is limited to 0'):
        ledger.add([instance(S=1)])


def test_a_resource_is_the_servers_or_a_devices():
    ledger = Ledger(None)
    ledger.add([instance(R=1, whole=True)])
    with pytest.raises(ServerError) as caught:
        ledger.add([instance(R=1)])
    assert caught.value.message == (
        'Resource "R" is present as both global and device-specific resource in the model '
        "configuration."
    )


def test_a_model_that_is_gone_needs_nothing():
    ledger = Ledger(None)
    big = ledger.add([instance(R=4, whole=True)])
    ledger.remove(big)
    first, second = ledger.add([instance(R=1)] * 2)
    assert ledger.ask(first) == [first]
    assert ledger.ask(second) == []


def test_a_turn_that_was_not_used_does_not_count():
    limiter, told = RateLimiter(None), []
    one, two = limiter.add([instance(R=1), instance(R=1)])
    limiter.ask(one, lambda: told.append(1))
    limiter.ask(two, lambda: told.append(2))
    assert told == [1]
    limiter.end(one, used=False)
    assert told == [1, 2]
    limiter.end(two)
    assert (one.turns, two.turns) == (0, 1)


class LedgerContract(RuleBasedStateMachine):
    """Never more than there is; who asks gets a turn in the end."""

    @initialize(
        needs=st.lists(
            st.tuples(
                st.integers(1, 4), st.dictionaries(st.sampled_from("RST"), st.integers(0, 3))
            ),
            min_size=1,
            max_size=5,
        )
    )
    def start(self, needs):
        self.ledger = Ledger({(name, False): 3 for name in "RST"})
        self.shares = self.ledger.add([instance(p, **counts) for p, counts in needs])
        self.waiting, self.running = [], []

    def move(self, granted):
        for share in granted:
            self.waiting.remove(share)
            self.running.append(share)

    @rule(index=st.integers(0, 4))
    def ask(self, index):
        share = self.shares[index % len(self.shares)]
        if share not in self.waiting and share not in self.running:
            self.waiting.append(share)
            self.move(self.ledger.ask(share))

    @rule(index=st.integers(0, 4))
    def give_back(self, index):
        if self.running:
            share = self.running.pop(index % len(self.running))
            self.move(self.ledger.give_back(share))

    @invariant()
    def there_is_enough(self):
        for name in "RST":
            assert sum(share.needs.get(name, 0) for share in self.running) <= 3
        assert self.running or not self.waiting


TestLedgerContract = LedgerContract.TestCase
TestLedgerContract.settings = settings(max_examples=80)
