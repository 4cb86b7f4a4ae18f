"""The deadlock detector: it reports certain deadlocks, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import NullSink

from reference_server.core.request import InferRequest
from reference_server.scheduling.deadlocks import DeadlockDetector, InstanceGroup, Member


def request(*, started=False):
    sent = InferRequest("m", {}, NullSink())
    sent.is_started = started
    return sent


def group(name, size=1):
    made = InstanceGroup(name, size)
    return made, [Member(made, f"{name}_{number}") for number in range(size)]


def test_single_instance_that_calls_its_own_model_is_a_deadlock():
    a, (first,) = group("a")
    assert DeadlockDetector().begin(first, [request()], request(), a) == "'a_0' waits for 'a'"


def test_a_second_instance_can_answer():
    a, (first, second) = group("a", 2)
    waits = DeadlockDetector()
    assert waits.begin(first, [request()], request(), a) is None
    assert waits.begin(second, [request()], request(), a) is not None
    waits.end(first)
    assert waits.begin(second, [request()], request(), a) is None


def test_instances_of_another_load_do_not_count():
    _, (first,) = group("a")
    new, _ = group("a")
    assert DeadlockDetector().begin(first, [request()], request(), new) is None


def test_refused_wait_is_not_recorded():
    a, (first,) = group("a")
    waits = DeadlockDetector()
    assert waits.begin(first, [request()], request(), a) is not None
    _, (second,) = group("b")
    assert waits.begin(second, [request()], request(), a) is None


class World:
    """A simulation of instances that call each other and answer."""

    def __init__(self, sizes):
        self.groups = [InstanceGroup(str(number), size) for number, size in enumerate(sizes)]
        self.members = [Member(group, "") for group in self.groups for _ in range(group.size)]
        self.busy = {}  # member -> the request that it executes
        self.waiting = {}  # member -> the request that it waits for, and the called group

    def can_still_move(self, member):
        """Return whether `member` gets its response if all others continue as far as possible."""
        busy, waiting = dict(self.busy), dict(self.waiting)
        while True:
            free = next((m for m in self.members if m in busy and m not in waiting), None)
            if free is not None:  # it answers its request, and the waiting members continue
                done = busy.pop(free)
                for waiter, (called, _) in list(waiting.items()):
                    if called is done:
                        del waiting[waiter]
                if member not in waiting:
                    return True
                continue
            taken = self._take(busy, waiting)
            if taken is None:
                return member not in waiting
            busy[taken[0]] = taken[1]

    def _take(self, busy, waiting):
        for called, target in waiting.values():
            if all(executed is not called for executed in busy.values()):
                for idle in self.members:
                    if idle.group is target and idle not in busy:
                        return idle, called
        return None


@pytest.mark.brute_force
@given(st.data(), st.lists(st.integers(1, 2), min_size=1, max_size=3))
def test_exactly_the_endless_waits_are_refused(data, sizes):
    world, waits = World(sizes), DeadlockDetector()
    for _ in range(data.draw(st.integers(1, 12))):
        called = [
            (sent, target)
            for sent, target in world.waiting.values()
            if all(executed is not sent for executed in world.busy.values())
        ]
        idle = [member for member in world.members if member not in world.busy]
        working = [member for member in world.busy if member not in world.waiting]
        steps = ["arrive"] * bool(idle) + ["ask", "answer"] * bool(working)
        steps += ["take"] * any(m.group is target for m in idle for _, target in called)
        if not steps:
            break
        step = data.draw(st.sampled_from(steps))
        if step == "arrive":
            world.busy[data.draw(st.sampled_from(idle))] = request(started=True)
        elif step == "take":
            able = [(m, sent) for m in idle for sent, target in called if m.group is target]
            member, sent = data.draw(st.sampled_from(able))
            sent.is_started = True
            world.busy[member] = sent
        elif step == "answer":
            done = world.busy.pop(data.draw(st.sampled_from(working)))
            for waiter, (sent, _) in list(world.waiting.items()):
                if sent is done:
                    del world.waiting[waiter]
                    waits.end(waiter)
        else:
            member = data.draw(st.sampled_from(working))
            sent, target = request(), data.draw(st.sampled_from(world.groups))
            cycle = waits.begin(member, [world.busy[member]], sent, target)
            world.waiting[member] = (sent, target)
            assert (cycle is None) == world.can_still_move(member)
            if cycle is not None:
                del world.waiting[member]


def test_started_request_without_executing_instance_may_be_answered():
    a, (first,) = group("a")
    b, (second,) = group("b")
    waits = DeadlockDetector()
    assert waits.begin(first, [request()], request(started=True), b) is None
    assert waits.begin(second, [], request(), a) is None
