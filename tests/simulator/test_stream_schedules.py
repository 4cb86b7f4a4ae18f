"""Random programs with streams, events and memory: they end, in order, and races are found.

The programs run on the streams' threads and with a seed. The expected order is computed by brute
force from the program alone.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.conftest import load_acl
from simulator.support.driving import ok

from ascend_simulator import Settings, SimulatorViolation, current, reset_for_tests
from ascend_simulator.streams.tasks import Task

STREAMS, EVENTS, CELLS = (
    3,
    2,
    12,
)  # enough memory that most programs have several tasks before a race
stream_ids = st.integers(0, STREAMS - 1)
event_ids = st.integers(0, EVENTS - 1)
cells = st.integers(0, CELLS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), stream_ids, cells),
        st.tuples(st.just("read"), stream_ids, cells),
        st.tuples(st.just("record"), stream_ids, event_ids),
        st.tuples(st.just("wait"), stream_ids, event_ids),
        st.tuples(st.just("synchronize"), stream_ids),
        st.tuples(st.just("synchronize_event"), event_ids),
    ),
    min_size=15,
    max_size=30,
)


class Expected:
    """The expected order of a program: sets of task numbers, without time."""

    def __init__(self):
        self.behind = [frozenset()] * STREAMS  # predecessors of a stream's next task
        self.events = [None] * EVENTS
        self.host = frozenset()
        self.accesses = []  # (task, cell, write)
        self.before = {}  # task -> its predecessors

    def races(self, stream, cell, write):
        ordered = self.behind[stream] | self.host
        return any(
            other_cell == cell and (write or other_write) and task not in ordered
            for task, other_cell, other_write in self.accesses
        )

    def submit(self, stream, cell, write):
        task = len(self.accesses)
        self.accesses.append((task, cell, write))
        self.before[task] = self.behind[stream] | self.host
        self.behind[stream] |= {task}


def play(seed, steps):
    """Run the program until its first race; return the order of tasks, and the expected order."""
    reset_for_tests(Settings(seed=seed))
    acl = load_acl()
    ok(acl.init())
    ok(acl.rt.set_device(0))
    streams = [ok(acl.rt.create_stream()) for _ in range(STREAMS)]
    events = [ok(acl.rt.create_event()) for _ in range(EVENTS)]
    memory = ok(acl.rt.malloc(64 * CELLS, 0))
    expected, ran = Expected(), []
    for kind, *on in steps:
        if kind in ("write", "read"):
            stream, cell = on
            write = kind == "write"
            touched = ((memory + 64 * cell, 64),)
            number = len(expected.accesses)
            task = Task(
                lambda number=number: ran.append(number),
                () if write else touched,
                touched if write else (),
                f"task {number}",
            )
            submit = current().stream(streams[stream], "test").submit
            if expected.races(stream, cell, write):
                with pytest.raises(SimulatorViolation, match=r"stream\.race"):
                    submit(task)
                break
            submit(task)
            expected.submit(stream, cell, write)
        elif kind == "record":
            stream, event = on
            ok(acl.rt.record_event(events[event], streams[stream]))
            expected.events[event] = expected.behind[stream]
        elif kind == "wait":
            stream, event = on
            if expected.events[event] is not None:
                ok(acl.rt.stream_wait_event(streams[stream], events[event]))
                expected.behind[stream] |= expected.events[event]
        elif kind == "synchronize":
            ok(acl.rt.synchronize_stream(streams[on[0]]))
            expected.host |= expected.behind[on[0]]
            assert expected.host <= set(ran)
        elif expected.events[on[0]] is not None:
            ok(acl.rt.synchronize_event(events[on[0]]))
            expected.host |= expected.events[on[0]]
            assert expected.host <= set(ran)
    ok(acl.rt.synchronize_device())
    reset_for_tests(Settings())
    return ran, expected


@pytest.mark.brute_force
@settings(max_examples=200, deadline=None)
@given(steps=steps, seed=st.none() | st.integers(0, 2**32))
def test_programs_end_in_order_and_their_races_are_found(seed, steps):
    ran, expected = play(seed, steps)
    assert sorted(ran) == list(range(len(expected.accesses)))  # each once, and all of them
    for task, before in expected.before.items():
        assert before <= set(ran[: ran.index(task)])


@pytest.mark.brute_force
@settings(max_examples=40, deadline=None)
@given(steps=steps, seed=st.integers(0, 2**32))
def test_a_seed_gives_the_same_order_each_time(seed, steps):
    assert play(seed, steps)[0] == play(seed, steps)[0]
