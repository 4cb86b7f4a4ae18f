import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.errors import EngineFault, EngineLost, OutOfMemory
from ge_runtime.scheduling.dispatch import isolate


class Graph:
    """Fails for any batch with a poisonous member; counts its calls."""

    def __init__(self, poisonous=(), most=None):
        self.poisonous, self.most, self.executions = set(poisonous), most, []
        self.outcome = {}

    def execute(self, members):
        self.executions.append(list(members))
        if self.most is not None and len(members) > self.most:
            raise OutOfMemory("too many")
        if self.poisonous & set(members):
            raise EngineFault("poison")
        for member in members:
            self.answer(member, member * 10)

    def answer(self, member, answer):
        assert member not in self.outcome
        self.outcome[member] = answer


def outcome_of(graph, members, still_waiting=lambda batch: batch):
    failures = isolate(members, graph.execute, graph.answer, still_waiting)
    return graph.outcome, failures


@pytest.mark.parametrize("culprit", [0, 7, 15])
def test_one_failing_request_of_sixteen_costs_nine_executions(culprit):
    graph = Graph({culprit})
    outcome, failures = outcome_of(graph, range(16))
    assert isinstance(outcome.pop(culprit), EngineFault)
    assert outcome == {member: member * 10 for member in range(16) if member != culprit}
    assert (failures, len(graph.executions)) == (5, 9)


@given(st.integers(1, 20), st.sets(st.integers(0, 19)))
def test_exactly_the_failing_requests_fail(count, poisonous):
    outcome, _ = outcome_of(Graph(poisonous), range(count))
    failed = {member for member, answer in outcome.items() if isinstance(answer, EngineFault)}
    assert failed == {member for member in poisonous if member < count}
    assert outcome.keys() == set(range(count))


def test_a_batch_too_large_for_memory_is_split_until_it_fits():
    graph = Graph(most=3)
    outcome, failures = outcome_of(graph, range(10))
    assert outcome == {member: member * 10 for member in range(10)}
    assert max(len(execute) for execute in graph.executions[failures:]) <= 5
    assert sum(len(execute) > 3 for execute in graph.executions) == failures


def test_members_keep_their_order_so_the_oldest_are_answered_first():
    graph = Graph({3})
    outcome_of(graph, range(4))
    assert graph.executions == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]


def test_an_abandoned_request_is_not_executed_again():
    graph = Graph({0})
    outcome, _ = outcome_of(graph, range(4), lambda batch: [m for m in batch if m != 2])
    assert graph.executions == [[0, 1, 2, 3], [0, 1], [0], [1], [3]]
    assert 2 not in outcome


def test_a_lost_engine_is_attributed_to_no_request():
    def execute(members):
        raise EngineLost("lost")

    with pytest.raises(EngineLost, match="lost"):
        isolate(range(4), execute, lambda member, answer: pytest.fail("delivered"), list)
