"""The rate limiter: shared resources, ranks, limits, and invariants."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reference_server.config.scheduler_settings import InstanceConfig, Resource
from reference_server.core.errors import Code, ServerError
from reference_server.scheduling.rate_limiter import RateLimiter, ResourceManager


def instance(priority=1, *, whole=False, **needs):
    resources = tuple(Resource(name, count, whole) for name, count in needs.items())
    return InstanceConfig("m_0", "CPU", priority, resources)


def executed_order(resources, instances, count):
    """Return the indices of the executing instances, in order, if all always have work."""
    running = [limited for limited in instances for limited in resources.request(limited)]
    order = []
    while len(order) < count:
        limited = running.pop(0)
        order.append(instances.index(limited))
        running += resources.request(limited)
        running += resources.release(limited)
    return order


def test_priority_three_gets_a_third_of_the_grants():
    resources = ResourceManager(None)
    order = executed_order(resources, resources.add([instance(1, R=1), instance(3, R=1)]), 400)
    assert order.count(0) == 3 * order.count(1)


def test_default_limit_is_the_largest_need():
    resources = ResourceManager(None)
    (big,) = resources.add([instance(R=4)])
    small = resources.add([instance(R=2)] * 3)
    assert resources.request(small[0]) == [small[0]]
    assert resources.request(small[1]) == [small[1]]
    assert resources.request(small[2]) == []
    assert resources.request(big) == []
    assert resources.release(small[0]) == [
        small[2]
    ]  # it has the same rank as `big` and arrived earlier
    assert resources.release(small[1]) == []
    assert resources.release(small[2]) == [big]
    assert repr(resources) == "ResourceManager(0 waiting; in use: R: 4)"


def test_large_needs_are_not_starved_by_small_ones():
    resources = ResourceManager({("R", False): 2})
    big, one, two = resources.add([instance(R=2), instance(2, R=1), instance(2, R=1)])
    assert resources.request(one) == [one]
    assert resources.request(big) == []
    assert resources.request(two) == []  # one unit is free, but reserved for `big`
    assert resources.release(one) == [big]


def test_the_first_waiting_instance_blocks_all_others():
    resources = ResourceManager(None)
    a, b, other, free = resources.add([instance(R=1), instance(R=1), instance(9, S=1), instance(9)])
    assert resources.request(a) == [a]
    assert resources.request(b) == []
    assert resources.request(other) == []
    assert resources.request(free) == []
    assert [resources.release(each) for each in (a, b, other)] == [[b], [other], [free]]


def test_a_release_grants_one_instance_and_a_second_one_if_its_own_waits_again():
    resources = ResourceManager({("R", False): 2})
    big, *small = resources.add([instance(R=2), *[instance(R=1)] * 4])
    assert resources.request(big) == [big]
    for each in small:
        assert resources.request(each) == []
    assert resources.request(big) == []  # it still holds its resources
    assert resources.release(big) == small[:2]
    assert resources.release(small[0]) == [small[2]]
    assert resources.release(small[1]) == [small[3]]
    assert resources.release(small[2]) == []
    assert resources.release(small[3]) == [big]
    for each in small[:2]:
        resources.request(each)
    assert resources.release(big) == [small[0]]


def test_of_equal_ranks_the_higher_priority_is_granted():
    resources = ResourceManager(None)
    low, high = resources.add([instance(2, R=1), instance(1, R=1)])
    assert resources.request(high) == [high]
    assert resources.request(low) == []
    assert resources.request(high) == []
    assert (low.rank[0], high.rank[0]) == (2, 2)
    assert resources.release(high) == [high]


def test_instance_that_could_never_run_is_refused():
    resources = ResourceManager({("R", False): 3})
    with pytest.raises(ServerError) as caught:
        resources.add([instance(R=3), instance(R=4)])
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        'Resource count for "R" is limited to 3 which will prevent scheduling of one or more '
        "model instances, the minimum required count is 4"
    )
    with pytest.raises(ServerError, match='"S" is limited to 0'):
        resources.add([instance(S=1)])


def test_resource_is_either_global_or_device_specific():
    resources = ResourceManager(None)
    resources.add([instance(R=1, whole=True)])
    with pytest.raises(ServerError) as caught:
        resources.add([instance(R=1)])
    assert caught.value.message == (
        'Resource "R" is present as both global and device-specific resource in the model '
        "configuration."
    )


def test_removed_instances_need_nothing():
    resources = ResourceManager(None)
    big = resources.add([instance(R=4, whole=True)])
    resources.remove(big)
    first, second = resources.add([instance(R=1)] * 2)
    assert resources.request(first) == [first]
    assert resources.request(second) == []


def test_unused_grant_does_not_count():
    limiter, granted = RateLimiter(None), []
    one, two = limiter.add([instance(R=1), instance(R=1)])
    limiter.request(one, lambda: granted.append(1))
    limiter.request(two, lambda: granted.append(2))
    assert granted == [1]
    limiter.release(one, used=False)
    assert granted == [1, 2]
    limiter.release(two)
    assert (one.grants, two.grants) == (0, 1)


class LedgerContract(RuleBasedStateMachine):
    """Invariants: the limits are kept, and some instance runs if any waits."""

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
        self.resources = ResourceManager({(name, False): 3 for name in "RST"})
        self.instances = self.resources.add([instance(p, **counts) for p, counts in needs])
        self.waiting, self.running = [], []

    def move(self, granted):
        for limited in granted:
            self.waiting.remove(limited)
            self.running.append(limited)

    @rule(index=st.integers(0, 4))
    def request(self, index):
        limited = self.instances[index % len(self.instances)]
        if limited not in self.waiting and limited not in self.running:
            self.waiting.append(limited)
            self.move(self.resources.request(limited))

    @rule(index=st.integers(0, 4))
    def release(self, index):
        if self.running:
            limited = self.running.pop(index % len(self.running))
            self.move(self.resources.release(limited))

    @invariant()
    def there_is_enough(self):
        for name in "RST":
            assert sum(limited.needs.get(name, 0) for limited in self.running) <= 3
        assert self.running or not self.waiting


TestLedgerContract = LedgerContract.TestCase
TestLedgerContract.settings = settings(max_examples=25)
TestLedgerContract.pytestmark = pytest.mark.brute_force
