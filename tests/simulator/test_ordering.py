"""The order of tasks, compared with all paths of the graph of events and waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_simulator.memory.blocks import HOST, Ordering, Use, Uses

STREAMS = 3
streams = st.integers(1, STREAMS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), streams),
        st.tuples(st.just("record"), streams),
        st.tuples(st.just("wait"), streams, st.integers(0, 9)),
        st.tuples(st.just("synchronize"), st.integers(0, 9)),
    ),
    max_size=40,
)


class Graph:
    """A brute-force model of `Ordering`: nodes, edges, reachability."""

    def __init__(self):
        self.before = {}  # node -> direct predecessors
        self.last = dict.fromkeys(range(STREAMS + 1))
        self.tasks = {stream: [] for stream in range(1, STREAMS + 1)}
        self.host = [None]  # nodes for which the host has waited

    def add(self, stream, *others):
        node = len(self.before)
        self.before[node] = {
            other for other in (*others, *self.host, self.last[stream]) if other is not None
        }
        self.last[stream] = node
        return node

    def reaches(self, first, node):
        todo = [node]
        while todo:
            node = todo.pop()
            if node == first:
                return True
            todo.extend(self.before[node])
        return False


@pytest.mark.brute_force
@given(steps)
def test_knowledge_is_reachability(steps):
    ordering, graph, marks = Ordering(), Graph(), []
    for stream in range(1, STREAMS + 1):
        ordering.add(stream)
    for kind, *arguments in steps:
        if kind == "submit":
            (stream,) = arguments
            graph.tasks[stream].append(graph.add(stream))
            assert ordering.submit(stream) == len(graph.tasks[stream])
        elif kind == "record":
            (stream,) = arguments
            marks.append((ordering.upto(stream), graph.last[stream]))
        elif marks and kind == "wait":
            stream, which = arguments
            knowledge, node = marks[which % len(marks)]
            ordering.learn(stream, knowledge)
            graph.add(stream, node)
        elif marks:
            knowledge, node = marks[arguments[0] % len(marks)]
            ordering.observe(knowledge)
            graph.host.append(node)
    known = [node for node in graph.host if node is not None]
    for other, nodes in graph.tasks.items():
        for number, node in enumerate(nodes, 1):
            over = any(graph.reaches(node, seen) for seen in known)
            assert ordering.is_over(other, number) == over
            assert ordering.comes_after(HOST, other, number) == over
            for stream in range(1, STREAMS + 1):
                last = graph.last[stream]
                after = over or (last is not None and graph.reaches(node, last))
                assert ordering.comes_after(stream, other, number) == (after or stream == other)


def test_a_dropped_stream_counts_as_finished():
    ordering = Ordering()
    ordering.add(1)
    ordering.add(2)
    number = ordering.submit(1)
    knowledge = ordering.upto(1)
    assert not ordering.comes_after(2, 1, number)
    ordering.drop(1)
    assert ordering.is_over(1, number)
    ordering.observe(knowledge)
    ordering.learn(2, knowledge)
    assert ordering.comes_after(2, 1, number)


ranges = st.tuples(st.integers(0, 8), st.integers(1, 4)).map(lambda r: (r[0], r[0] + r[1]))


@given(
    st.lists(st.tuples(st.integers(1, 2), ranges, st.booleans()), max_size=12),
    ranges,
    st.booleans(),
)
def test_a_conflict_is_an_overlap_with_a_write_on_another_stream(entries, asked, write):
    ordering, uses = Ordering(), Uses()
    for stream in (1, 2, 3):
        ordering.add(stream)
    for stream, (first, end), writes in entries:
        uses.add(Use(stream, first, end, writes), ordering.submit(stream))
    for asking in (1, 2, 3, HOST):
        use = Use(asking, *asked, write)
        expected = [
            (stream, first, end, writes)
            for stream, (first, end), writes in entries
            if stream != asking and (write or writes) and first < use.end and use.first < end
        ]
        found = uses.conflict(ordering, use)
        assert (found in expected) if expected else (found is None)


def test_uses_that_the_host_knows_to_be_over_are_forgotten():
    ordering, uses = Ordering(), Uses()
    ordering.add(1)
    for place in range(100):
        uses.add(Use(1, place, place + 1, True), ordering.submit(1))
        ordering.observe(ordering.upto(1))
    assert uses.conflict(ordering, Use(HOST, 0, 100, True)) is None
    assert not uses._last
