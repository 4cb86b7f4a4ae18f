"""The deadlock detector: a deadlock is told when it is certain, and only then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import NullSink

from reference_server.core.request import InferRequest
from reference_server.scheduling.deadlocks import DeadlockDetector, InstanceGroup, Member


def request(*, begun=False):
    sent = InferRequest("m", {}, NullSink())
    sent.is_started = begun
    return sent


def group(name, size=1):
    made = InstanceGroup(name, size)
    return made, [Member(made, f"{name}_{number}") for number in range(size)]


def test_a_lone_instance_that_asks_its_own_model_waits_for_itself():
    a, (first,) = group("a")
    assert DeadlockDetector().begin(first, [request()], request(), a) == "'a_0' waits for 'a'"


def test_a_second_instance_can_answer():
    a, (first, second) = group("a", 2)
    waits = DeadlockDetector()
    assert waits.begin(first, [request()], request(), a) is None
    assert waits.begin(second, [request()], request(), a) is not None
    waits.end(first)
    assert waits.begin(second, [request()], request(), a) is None


def test_two_models_that_ask_each_other_at_once_are_found():
    a, (first,) = group("a")
    b, (second,) = group("b")
    waits = DeadlockDetector()
    assert waits.begin(first, [request()], request(), b) is None
    told = waits.begin(second, [request()], request(), a)
    assert told == "'b_0' waits for 'a', 'a_0' waits for 'b'"


def test_who_asks_back_is_found_though_its_model_has_idle_instances():
    a, (first,) = group("a")
    b, (second, _) = group("b", 2)
    waits, asked = DeadlockDetector(), request(begun=True)
    assert waits.begin(first, [request()], asked, b) is None
    assert waits.begin(second, [asked], request(), a) is not None


def test_a_request_that_was_begun_and_given_away_may_be_answered_by_anybody():
    a, (first,) = group("a")
    b, (second,) = group("b")
    waits = DeadlockDetector()
    assert waits.begin(first, [request()], request(begun=True), b) is None
    assert waits.begin(second, [], request(), a) is None


def test_instances_of_another_loading_of_the_model_do_not_count():
    _, (first,) = group("a")
    new, _ = group("a")
    assert DeadlockDetector().begin(first, [request()], request(), new) is None


def test_whoever_was_refused_does_not_wait():
    a, (first,) = group("a")
    waits = DeadlockDetector()
    assert waits.begin(first, [request()], request(), a) is not None
    _, (second,) = group("b")
    assert waits.begin(second, [request()], request(), a) is None


class World:
    """Instances that ask and answer, played until nothing moves any more."""

    def __init__(self, sizes):
        self.groups = [InstanceGroup(str(number), size) for number, size in enumerate(sizes)]
        self.members = [Member(group, "") for group in self.groups for _ in range(group.size)]
        self.busy = {}  # member -> what it executes
        self.waiting = {}  # member -> what it waits for, and whom it has asked

    def can_still_move(self, member):
        """Whether `member` is answered if from now on all others do what they can."""
        busy, waiting = dict(self.busy), dict(self.waiting)
        while True:
            free = next((m for m in self.members if m in busy and m not in waiting), None)
            if free is not None:  # it answers what it executes, and whoever waits for that goes on
                done = busy.pop(free)
                for waiter, (asked, _) in list(waiting.items()):
                    if asked is done:
                        del waiting[waiter]
                if member not in waiting:
                    return True
                continue
            taken = self._take(busy, waiting)
            if taken is None:
                return member not in waiting
            busy[taken[0]] = taken[1]

    def _take(self, busy, waiting):
        for asked, target in waiting.values():
            if all(executed is not asked for executed in busy.values()):
                for idle in self.members:
                    if idle.group is target and idle not in busy:
                        return idle, asked
        return None


@pytest.mark.brute_force
@given(st.data(), st.lists(st.integers(1, 2), min_size=1, max_size=3))
def test_exactly_those_are_refused_who_would_wait_for_ever(data, sizes):
    world, waits = World(sizes), DeadlockDetector()
    for _ in range(data.draw(st.integers(1, 12))):
        asked = [
            (sent, target)
            for sent, target in world.waiting.values()
            if all(executed is not sent for executed in world.busy.values())
        ]
        idle = [member for member in world.members if member not in world.busy]
        working = [member for member in world.busy if member not in world.waiting]
        steps = ["arrive"] * bool(idle) + ["ask", "answer"] * bool(working)
        steps += ["take"] * any(m.group is target for m in idle for _, target in asked)
        if not steps:
            break
        step = data.draw(st.sampled_from(steps))
        if step == "arrive":
            world.busy[data.draw(st.sampled_from(idle))] = request(begun=True)
        elif step == "take":
            able = [(m, sent) for m in idle for sent, target in asked if m.group is target]
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
            told = waits.begin(member, [world.busy[member]], sent, target)
            world.waiting[member] = (sent, target)
            assert (told is None) == world.can_still_move(member)
            if told is not None:
                del world.waiting[member]
