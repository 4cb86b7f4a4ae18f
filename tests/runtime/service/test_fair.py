"""The queue by itself, under a clock that is a number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ge_runtime.service.fair import FairQueue, State, Ticket


def offered(queue, *tickets, now=0.0):
    for ticket in tickets:
        queue.offer(ticket, now)
    return tickets


def in_order(queue, took_s=1.0):
    """The clients in the order in which their tickets run, one after the other to the end."""
    order, now = [], 0.0
    while queue.running:
        ticket = queue.running[0]
        order.append(ticket.client)
        now += took_s
        queue.finish(ticket, took_s, now)
    return "".join(order)


def test_ticket_runs_at_once_where_there_is_room():
    queue = FairQueue(2)
    first, second, third = offered(queue, Ticket("a"), Ticket("b"), Ticket("c"))
    assert [ticket.state for ticket in (first, second, third)] == [
        State.RUNNING,
        State.RUNNING,
        State.WAITING,
    ]
    assert queue.finish(first, 1.0, 1.0) == [third]
    assert (third.state, third.waited_s, first.waited_s) == (State.RUNNING, 1.0, 0.0)


def test_clients_take_turns_however_much_one_of_them_asks_for():
    queue = FairQueue(1)
    offered(queue, *(Ticket("a") for _ in range(6)), *(Ticket("b") for _ in range(3)))
    assert in_order(queue) == "ababab" + "aaa"


def test_client_of_long_executions_gets_fewer_of_them():
    queue, order, now = FairQueue(1), [], 0.0
    took = {"a": 3.0, "b": 1.0}
    offered(queue, *(Ticket(client) for client in "ab" * 8))
    for _ in range(8):
        (running,) = queue.running
        order.append(running.client)
        now += took[running.client]
        queue.finish(running, took[running.client], now)
    assert "".join(order) == "abbbabbb"


def test_twice_the_weight_is_twice_the_share():
    queue = FairQueue(1)
    offered(queue, *(Ticket("a", weight=2.0) for _ in range(12)), *(Ticket("b") for _ in range(12)))
    assert sorted(in_order(queue)[:9]) == ["a"] * 6 + ["b"] * 3


def test_who_was_away_gets_no_credit_for_it():
    queue = FairQueue(1)
    offered(queue, *(Ticket("a") for _ in range(4)))
    for now in range(3):
        queue.finish(queue.running[0], 1.0, float(now))
    offered(queue, *(Ticket("a") for _ in range(4)), *(Ticket("b") for _ in range(4)), now=3.0)
    assert in_order(queue) in ("ababababa", "abbababaa")


def test_expectation_counts_until_the_truth_is_known():
    queue = FairQueue(2)
    slow = Ticket("a", expected_s=100.0)
    offered(queue, slow, Ticket("b"), Ticket("a"), Ticket("b"))
    (begun,) = queue.finish(queue.running[1], 1.0, 1.0)
    assert begun.client == "b"  # a has 100 s coming
    offered(queue, Ticket("b"), now=1.0)
    (begun,) = queue.finish(slow, 0.5, 1.5)
    assert begun.client == "a"  # it took half a second after all


def test_higher_priority_goes_first_but_not_for_ever():
    queue = FairQueue(1, overtakings=3)
    offered(queue, Ticket("x"), Ticket("low"))
    order = []
    for number in range(8):
        queue.offer(Ticket(f"high {number}", priority=1), float(number))
        running = queue.running[0]
        order.append(running.client)
        queue.finish(running, 1.0, float(number))
    assert order.index("low") == 4


def test_execution_that_needs_much_waits_until_the_device_has_drained_and_is_not_passed():
    queue = FairQueue(2)
    small, large, late = offered(queue, Ticket("a"), Ticket("b", units=2), Ticket("c"))
    assert (large.state, late.state, queue.free) == (State.WAITING, State.WAITING, 1)
    assert queue.finish(small, 1.0, 1.0) == [large]
    assert queue.finish(large, 1.0, 2.0) == [late]


def test_more_units_than_there_are_is_all_of_them():
    queue = FairQueue(2)
    (ticket,) = offered(queue, Ticket("a", units=64))
    assert (ticket.state, ticket.units, queue.free) == (State.RUNNING, 2, 0)


def test_of_one_key_one_runs_and_others_go_on():
    queue = FairQueue(3)
    first, second, other = offered(
        queue, Ticket("a", exclusive="m"), Ticket("b", exclusive="m"), Ticket("c")
    )
    assert (second.state, other.state) == (State.WAITING, State.RUNNING)
    assert queue.finish(first, 1.0, 1.0) == [second]


def test_deadline_ends_waiting_and_makes_room_for_others():
    queue = FairQueue(2)
    offered(queue, Ticket("a"))
    large, small = offered(queue, Ticket("b", units=2, deadline=5.0), Ticket("c"))
    assert list(queue.expire(4.9)) == []
    assert queue.expire(5.0) == [large, small]
    assert (large.state, small.state) == (State.EXPIRED, State.RUNNING)
    assert not queue.waiting
    (late,) = offered(queue, Ticket("d", deadline=5.0), now=5.0)
    assert late.state is State.EXPIRED


def test_cancelled_ticket_never_runs_and_running_one_is_left_alone():
    queue = FairQueue(1)
    running, waiting, next_ = offered(queue, Ticket("a"), Ticket("b"), Ticket("c"))
    assert list(queue.cancel(running, 1.0)) == []
    assert queue.cancel(waiting, 1.0) == [waiting]
    assert list(queue.cancel(waiting, 1.0)) == []
    assert (running.state, waiting.state) == (State.RUNNING, State.CANCELLED)
    assert queue.finish(running, 1.0, 2.0) == [next_]


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
            queue.offer(Ticket(client, weight=weights[client], expected_s=costs[client]), now)
    ends = {ticket: costs[ticket.client] for ticket in queue.running}
    for _ in range(40):
        ticket = min(ends, key=ends.get)
        now = ends.pop(ticket)
        served[ticket.client] += costs[ticket.client] / weights[ticket.client]
        for begun in queue.finish(ticket, costs[ticket.client], now):
            ends[begun] = now + costs[begun.client]
        slack = 2 * capacity * max(costs[c] / weights[c] for c in clients)
        assert max(served.values()) - min(served.values()) <= slack


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_queue_keeps_its_promises_whatever_is_asked(capacity):
    run_state_machine_as_test(type("Sized", (Machine,), {"capacity": capacity}))


class Machine(RuleBasedStateMachine):
    """All that can happen to a queue, in any order."""

    capacity = 1

    def __init__(self):
        super().__init__()
        self.queue = FairQueue(self.capacity, overtakings=4)
        self.now = 0.0
        self.all = []
        self.settled = []
        self.begun_since = {}

    def note(self, settled):
        for ticket in settled:
            assert ticket not in self.settled, "told twice"
            assert ticket.state is not State.WAITING
            self.settled.append(ticket)

    @rule(
        client=st.integers(0, 3),
        units=st.integers(1, 4),
        priority=st.integers(0, 1),
        key=st.sampled_from([None, None, "m", "n"]),
        within=st.sampled_from([math.inf, math.inf, 0.0, 3.0]),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
    )
    def offer(self, client, units, priority, key, within, weight):
        ticket = Ticket(client, units, weight, priority, self.now + within, key, expected_s=1.0)
        self.note(self.queue.offer(ticket, self.now))
        self.all.append(ticket)

    @precondition(lambda self: self.queue.running)
    @rule(data=st.data(), took=st.floats(0.0, 5.0))
    def finish(self, data, took):
        ticket = data.draw(st.sampled_from(list(self.queue.running)))
        self.now += took
        self.note(self.queue.finish(ticket, took, self.now))

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
        used = sum(ticket.units for ticket in self.queue.running)
        assert self.queue.free == self.queue.capacity - used >= 0

    @invariant()
    def keys_are_kept(self):
        keys = [ticket.exclusive for ticket in self.queue.running if ticket.exclusive]
        assert len(keys) == len(set(keys))

    @invariant()
    def every_ticket_is_somewhere(self):
        for ticket in self.all:
            assert (ticket in self.queue.waiting) == (ticket.state is State.WAITING)
            assert (ticket in self.queue.running) == (ticket.state is State.RUNNING)

    @invariant()
    def work_is_conserved(self):
        """Nobody waits for an idle device, nor with a key that is free beside enough units."""
        if self.queue.waiting and not self.queue.running:
            raise AssertionError("somebody waits for a device that nobody uses")
        if self.queue.waiting and self.capacity == 1:
            assert self.queue.free == 0

    def teardown(self):
        """Nobody starves: with nothing new, all that wait run."""
        left = len(self.queue.waiting) + len(self.queue.running)
        for _ in range(left):
            if self.queue.running:
                self.now += 1.0
                self.note(self.queue.finish(self.queue.running[0], 1.0, self.now))
        assert not self.queue.waiting
        assert not self.queue.running
