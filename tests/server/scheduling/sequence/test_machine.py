"""Invariants of the sequence batcher: order, one slot each, no lost requests, null requests."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from server.support.sequences import Stage

from reference_server.core.errors import ServerError

KEYS = (1, 2, 3, "four")


class Sequences(RuleBasedStateMachine):
    """Random actions of clients, instances and time; the responses of requests are counted."""

    def __init__(self):
        super().__init__()
        self.sent = []
        self.said = []
        self.started = []
        self.counted = 0
        self.requests = {}
        self.places = {}

    @initialize(
        strategy=st.sampled_from(
            [
                "direct { }",
                "direct { max_queue_delay_microseconds: 300000 minimum_slot_utilization: 0.7 }",
                "oldest { }",
                "oldest { max_candidate_sequences: 3 max_queue_delay_microseconds: 300000 }",
            ]
        ),
        rows=st.integers(0, 3),
        instances=st.integers(1, 2),
        iterative=st.booleans(),
    )
    def begin(self, strategy, rows, instances, iterative):
        self.iterative = iterative
        self.direct = strategy.startswith("direct")
        self.stage = Stage(
            f"iterative_sequence: {str(iterative).lower()} {strategy}",
            max_batch_size=rows,
            more=f"instance_group {{ count: {instances} kind: KIND_CPU }}",
        )
        self.rows = max(1, rows)

    @rule(
        key=st.sampled_from(KEYS),
        flags=st.sampled_from(["start", "start", "", "", "end", "both"]),
        timeout_us=st.sampled_from([0, 0, 200_000]),
    )
    def ask(self, key, flags, timeout_us):
        name = f"r{len(self.requests)}"
        before = len(self.stage.work)
        try:
            self.requests[name] = self.stage.ask(name, key, flags, timeout_us=timeout_us)
        except ServerError:
            assert len(self.stage.work) == before
            assert flags not in ("start", "both")
            return
        self.sent.append(name)
        self.said.append((key, flags))

    @rule(data=st.data(), again=st.booleans())
    def finish(self, data, again):
        if self.stage.busy:
            instance = data.draw(st.sampled_from(sorted(self.stage.busy)))
            ids = [request.id for request in self.stage.busy[instance] if request.id]
            self.stage.finish(instance, again=ids if again and self.iterative else ())

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 100.0]))
    def wait(self, seconds):
        self.stage.wait(seconds)

    @rule(data=st.data())
    def cancel(self, data):
        if self.sent:
            self.requests[data.draw(st.sampled_from(self.sent))].cancellation.cancel()
            self.stage.look()

    @invariant()
    def batches_are_sound(self):
        if not hasattr(self, "stage"):
            return
        for instance, ids in self.stage.batches[self.counted :]:
            assert 0 < len(ids) <= self.rows
            assert ids[-1], "a null request is a hole below another one"
            assert self.direct or all(ids), "only slots have holes"
            self.started += [name for name in ids if name]
            if self.direct:
                self.check_places(instance, ids)
        self.counted = len(self.stage.batches)
        executing = [
            request.id for batch in self.stage.busy.values() for request in batch if request.id
        ]
        assert len(executing) == len(set(executing))

    def check_places(self, instance, ids):
        """Check that a sequence always has the same row of the same instance."""
        for row, name in enumerate(ids):
            if name:
                place = instance, row
                assert self.places.setdefault(self.line_of(name), place) == place

    @invariant()
    def order_holds_within_a_sequence(self):
        if not hasattr(self, "stage") or self.iterative:
            return
        by_line = {}
        for name in self.started:
            by_line.setdefault(self.line_of(name), []).append(int(name[1:]))
        assert all(order == sorted(order) for order in by_line.values())

    def line_of(self, name):
        """Return the sequence of a request: its id, and the numbers of earlier ends and starts."""
        number = self.sent.index(name)
        key, flags = self.said[number]
        earlier = [flags for other, flags in self.said[:number] if other == key]
        starts = sum(other in ("start", "both") for other in [*earlier, flags])
        return key, sum(other in ("end", "both") for other in earlier), starts

    @invariant()
    def slots_are_never_shared(self):
        if not hasattr(self, "stage"):
            return
        slots = self.stage.work.slots
        sequences = [
            slot.sequence
            for slots in slots.by_instance
            for slot in slots
            if slot.sequence is not None
        ]
        assert len(sequences) == len({id(sequence) for sequence in sequences})
        assert all(sequence.slot.sequence is sequence for sequence in sequences)
        empty = sum(slot.sequence is None for slots in slots.by_instance for slot in slots)
        assert empty == len(slots._free)
        assert not (slots._backlog and slots._free)
        assert slots.waiting == sum(
            len(sequence.waiting) for sequence in [*sequences, *slots._backlog]
        )

    def teardown(self):
        """Check that every request was executed or refused exactly once."""
        if not hasattr(self, "stage"):
            return
        self.stage.work.flush()
        self.stage.look()
        self.stage.drain()
        self.batches_are_sound()
        ends = Counter(set(self.started) if self.iterative else self.started)
        ends.update(name for name in self.stage.refused if name not in self.started)
        assert ends == Counter(self.sent)
        assert len(self.stage.work) == 0
        assert self.stage.work.next_deadline_ns() is None


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=60, stateful_step_count=40)
TestSequences.pytestmark = pytest.mark.brute_force
