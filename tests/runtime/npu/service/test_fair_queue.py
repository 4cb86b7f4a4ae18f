"""The queue by itself, under a clock that is a number."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ge_runtime.npu.service.fair_scheduler import FairQueue, QueueEntry, State


def offered(queue, *entries, now=0.0):
    for entry in entries:
        queue.offer(entry, now)
    return entries


def in_order(queue, took_s=1.0):
    """The clients in the order in which their entries run, one after the other to the end."""
    order, now = [], 0.0
    while queue.running:
        entry = queue.running[0]
        order.append(entry.client)
        now += took_s
        queue.finish(entry, took_s, now)
    return "".join(order)


def test_clients_alternate_even_if_one_has_more_executions():
    queue = FairQueue(1)
    offered(queue, *(QueueEntry("a") for _ in range(6)), *(QueueEntry("b") for _ in range(3)))
    assert in_order(queue) == "ababab" + "aaa"


def test_an_absent_client_gets_no_credit():
    queue = FairQueue(1)
    offered(queue, *(QueueEntry("a") for _ in range(4)))
    for now in range(3):
        queue.finish(queue.running[0], 1.0, float(now))
    offered(
        queue, *(QueueEntry("a") for _ in range(4)), *(QueueEntry("b") for _ in range(4)), now=3.0
    )
    assert in_order(queue) in ("ababababa", "abbababaa")


@pytest.mark.parametrize("others", [0, 70], ids=["idle", "removed"])
def test_a_client_that_returns_still_owes_the_time_that_it_used(others):
    """Also after the accounts of many clients were removed."""
    queue = FairQueue(1)
    (long,) = offered(queue, QueueEntry("a"))
    queue.finish(long, 100.0, 100.0)
    for number in range(others):
        (short,) = offered(queue, QueueEntry(number), now=100.0)
        queue.finish(short, 0.0, 100.0)
    offered(queue, *map(QueueEntry, "babb"), now=100.0)
    assert in_order(queue) == "bbba"


def test_clients_that_owe_nothing_are_forgotten():
    queue = FairQueue(1)
    for number in range(200):
        (entry,) = offered(queue, QueueEntry(number))
        queue.finish(entry, 0.0, 0.0)
    assert len(queue._accounts) <= 65


def test_expectation_counts_until_the_truth_is_known():
    queue = FairQueue(2)
    slow = QueueEntry("a", expected_s=100.0)
    offered(queue, slow, QueueEntry("b"), QueueEntry("a"), QueueEntry("b"))
    (begun,) = queue.finish(queue.running[1], 1.0, 1.0)
    assert begun.client == "b"  # a has 100 s coming
    offered(queue, QueueEntry("b"), now=1.0)
    (begun,) = queue.finish(slow, 0.5, 1.5)
    assert begun.client == "a"  # it took half a second after all


def test_higher_priority_goes_first_but_not_for_ever():
    queue = FairQueue(1, bypass_limit=3)
    offered(queue, QueueEntry("x"), QueueEntry("low"))
    order = []
    for number in range(8):
        queue.offer(QueueEntry(f"high {number}", priority=1), float(number))
        running = queue.running[0]
        order.append(running.client)
        queue.finish(running, 1.0, float(number))
    assert order.index("low") == 4


def test_execution_that_needs_much_waits_until_the_device_has_drained_and_is_not_passed():
    queue = FairQueue(2)
    small, large, late = offered(queue, QueueEntry("a"), QueueEntry("b", units=2), QueueEntry("c"))
    assert (large.state, late.state, queue.free) == (State.WAITING, State.WAITING, 1)
    assert queue.finish(small, 1.0, 1.0) == [large]
    assert queue.finish(large, 1.0, 2.0) == [late]


def test_deadline_ends_waiting_and_makes_room_for_others():
    queue = FairQueue(2)
    offered(queue, QueueEntry("a"))
    large, small = offered(queue, QueueEntry("b", units=2, deadline=5.0), QueueEntry("c"))
    assert list(queue.expire(4.9)) == []
    assert queue.expire(5.0) == [large, small]
    assert (large.state, small.state) == (State.EXPIRED, State.RUNNING)
    assert not queue.waiting
    (late,) = offered(queue, QueueEntry("d", deadline=5.0), now=5.0)
    assert late.state is State.EXPIRED


def test_cancelled_ticket_never_runs_and_running_one_is_left_alone():
    queue = FairQueue(1)
    running, waiting, next_ = offered(queue, QueueEntry("a"), QueueEntry("b"), QueueEntry("c"))
    assert list(queue.cancel(running, 1.0)) == []
    assert queue.cancel(waiting, 1.0) == [waiting]
    assert list(queue.cancel(waiting, 1.0)) == []
    assert (running.state, waiting.state) == (State.RUNNING, State.CANCELLED)
    assert queue.finish(running, 1.0, 2.0) == [next_]


@pytest.mark.brute_force
@given(
    st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=2, max_size=4),
    st.lists(st.floats(0.1, 4.0), min_size=2, max_size=4),
    st.integers(1, 3),
)
def test_backlogged_clients_get_shares_after_their_weights(weights, costs, capacity):
    """At any moment none is further behind another than the executions under way can explain."""
    queue = FairQueue(capacity)
    clients = range(min(len(weights), len(costs)))
    served = dict.fromkeys(clients, 0.0)
    now = 0.0
    for client in clients:
        for _ in range(60):
            queue.offer(QueueEntry(client, weight=weights[client], expected_s=costs[client]), now)
    ends = {entry: costs[entry.client] for entry in queue.running}
    for _ in range(40):
        entry = min(ends, key=ends.get)
        now = ends.pop(entry)
        served[entry.client] += costs[entry.client] / weights[entry.client]
        for begun in queue.finish(entry, costs[entry.client], now):
            ends[begun] = now + costs[begun.client]
        slack = 2 * capacity * max(costs[c] / weights[c] for c in clients)
        assert max(served.values()) - min(served.values()) <= slack


@pytest.mark.brute_force
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_the_queue_keeps_its_invariants(capacity):
    sized = type("Sized", (Machine,), {"capacity": capacity})
    run_state_machine_as_test(sized, settings=settings(max_examples=50))


class Machine(RuleBasedStateMachine):
    """All that can happen to a queue, in any order."""

    capacity = 1

    def __init__(self):
        super().__init__()
        self.queue = FairQueue(self.capacity, bypass_limit=4)
        self.now = 0.0
        self.all = []
        self.settled = []
        self.begun_since = {}

    def note(self, settled):
        for entry in settled:
            assert entry not in self.settled, "reported twice"
            assert entry.state is not State.WAITING
            self.settled.append(entry)

    @rule(
        client=st.integers(0, 3),
        units=st.integers(1, 4),
        priority=st.integers(0, 1),
        key=st.sampled_from([None, None, "m", "n"]),
        within=st.sampled_from([math.inf, math.inf, 0.0, 3.0]),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
    )
    def offer(self, client, units, priority, key, within, weight):
        entry = QueueEntry(client, units, weight, priority, self.now + within, key, expected_s=1.0)
        self.note(self.queue.offer(entry, self.now))
        self.all.append(entry)

    @precondition(lambda self: self.queue.running)
    @rule(data=st.data(), took=st.floats(0.0, 5.0))
    def finish(self, data, took):
        entry = data.draw(st.sampled_from(list(self.queue.running)))
        self.now += took
        self.note(self.queue.finish(entry, took, self.now))

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def cancel(self, data):
        self.note(self.queue.cancel(data.draw(st.sampled_from(self.all)), self.now))

    @rule()
    def leave(self):
        self.note(self.queue.cancel_all())

    @rule(seconds=st.floats(0.0, 5.0))
    def pass_time(self, seconds):
        self.now += seconds
        self.note(self.queue.expire(self.now))

    @invariant()
    def units_are_exact(self):
        used = sum(entry.units for entry in self.queue.running)
        assert self.queue.free == self.queue.capacity - used >= 0

    @invariant()
    def keys_are_kept(self):
        keys = [entry.exclusive for entry in self.queue.running if entry.exclusive]
        assert len(keys) == len(set(keys))

    @invariant()
    def every_ticket_is_somewhere(self):
        for entry in self.all:
            assert (entry in self.queue.waiting) == (entry.state is State.WAITING)
            assert (entry in self.queue.running) == (entry.state is State.RUNNING)

    @invariant()
    def work_is_conserved(self):
        """No entry waits for an idle device, nor if its key and enough units are free."""
        if self.queue.waiting and not self.queue.running:
            raise AssertionError("an entry waits for an idle device")
        if self.queue.waiting and self.capacity == 1:
            assert self.queue.free == 0

    def teardown(self):
        """No entry starves: without new entries, all waiting ones run."""
        left = len(self.queue.waiting) + len(self.queue.running)
        for _ in range(left):
            if self.queue.running:
                self.now += 1.0
                self.note(self.queue.finish(self.queue.running[0], 1.0, self.now))
        assert not self.queue.waiting
        assert not self.queue.running
