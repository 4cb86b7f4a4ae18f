"""The dynamic batcher: batches and times as recorded from Triton, and invariants of queues."""

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from server.support.clock import SECOND_NS
from server.support.requests import a_request

from reference_server.core.errors import Code
from reference_server.scheduling.dynamic_batcher import DynamicBatcher
from reference_server.scheduling.work_queue import Fifo

# ------------------------------------------------------------------------ sequences, virtual time


def batches(work, arrivals, *, execution_s=1.0, instances=1):
    """Return the start of each batch, in seconds, and the sizes of its requests.

    `arrivals` are (seconds, rows) or (seconds, rows, batch key). As in the scheduler, an idle
    instance takes a batch when a request arrives, when it becomes idle, and when the delay ends.
    """
    pending = sorted((round(at * SECOND_NS), *rest) for at, *rest in arrivals)
    busy_until: list[int] = []
    started: list[tuple[float, list[int]]] = []
    while pending or len(work) or busy_until:
        moments = [pending[0][0]] if pending else []
        moments += busy_until[:1]
        deadline = work.next_deadline_ns()
        if deadline is not None and len(busy_until) < instances:
            moments.append(deadline)
        now = min(moments)
        while busy_until and busy_until[0] <= now:
            heapq.heappop(busy_until)
        if pending and pending[0][0] == now:
            _, rows, *key = pending.pop(0)
            request = a_request(batch_size=rows, batch_key=key or None, queued_ns=now)
            work.offer(request, now)
        while len(busy_until) < instances and (batch := work.take(0, now)):
            started.append((now / SECOND_NS, [request.batch_size for request in batch]))
            heapq.heappush(busy_until, now + round(execution_s * SECOND_NS))
    return started


def sizes(work, arrivals, **more):
    return [rows for _, rows in batches(work, arrivals, **more)]


def batcher(max_rows=8, preferred=(), delay_s=0.0):
    return DynamicBatcher(max_rows, preferred, round(delay_s * SECOND_NS))


def singles(count, spacing_s):
    return [(spacing_s * index, 1) for index in range(count)]


def test_requests_that_arrive_while_busy_form_the_next_batch():
    assert sizes(batcher(), singles(7, 0.02), execution_s=0.3) == [[1], [1] * 6]


def test_delay_merges_requests_that_arrive_within_it():
    assert batches(batcher(delay_s=0.4), singles(3, 0.1)) == [(0.4, [1, 1, 1])]


def test_request_of_maximum_size_does_not_wait():
    assert batches(batcher(delay_s=0.4), [(0, 8)]) == [(0, [8])]


def test_request_that_does_not_fit_closes_the_batch():
    arrivals = [(0, 5), (0.1, 5), (0.2, 3)]
    started = batches(batcher(delay_s=0.4), arrivals, execution_s=0.01)
    assert started == [(0.1, [5]), (0.2, [5, 3])]


PREFERRED_WITH_DELAY = {
    "one row waits": ([(0, 1)], [(0.5, [1])]),
    "three rows wait": ([(0, 3)], [(0.5, [3])]),
    "two rows go at once": ([(0, 2)], [(0, [2])]),
    "more than the largest preferred size goes at once": ([(0, 6)], [(0, [6])]),
    "five singles": (
        singles(5, 0.05),
        [(0.05, [1, 1]), (0.15, [1, 1]), (0.7, [1])],
    ),
    "three rows go when two come": ([(0, 3), (0.1, 2)], [(0.1, [3]), (0.11, [2])]),
    "one, two, three": ([(0, 1), (0.1, 2), (0.2, 3)], [(0.2, [1, 2]), (0.7, [3])]),
}


@pytest.mark.parametrize(
    ("arrivals", "expected"), PREFERRED_WITH_DELAY.values(), ids=PREFERRED_WITH_DELAY
)
def test_preferred_sizes_with_a_delay(arrivals, expected):
    work = batcher(preferred=(2, 4), delay_s=0.5)
    assert batches(work, arrivals, execution_s=0.01) == expected


def test_prepared_batch_of_a_preferred_size_is_closed():
    work = batcher(preferred=(2, 4))
    assert sizes(work, singles(9, 0.02), execution_s=0.4) == [[1], [1] * 2, [1] * 4, [1] * 2]


def test_two_instances_start_single_requests_then_batch():
    started = batches(batcher(), singles(6, 0.02), execution_s=0.3, instances=2)
    assert started == [(0, [1]), (0.02, [1]), (0.3, [1] * 4)]


def test_model_without_batching_runs_single_requests():
    assert sizes(batcher(max_rows=0), singles(3, 0.02)) == [[1], [1], [1]]


def test_different_batch_key_closes_the_batch_and_keeps_the_order():
    arrivals = [(0, 1, "first"), (0.1, 1, "A"), (0.2, 2, "B"), (0.3, 3, "B"), (0.4, 4, "A")]
    assert sizes(batcher(max_rows=16), arrivals) == [[1], [1], [2, 3], [4]]


def test_fifo_runs_one_request_at_a_time():
    assert sizes(Fifo(), [(0, 1), (0.1, 5), (0.2, 2)]) == [[1], [5], [2]]


# ------------------------------------------------------------------- while the instance is busy

MS = 1_000_000
ROWS = (1, 1, 1, 2, 1, 3, 1)
#: Preferred sizes, times, rows of the requests a, b, c..., and the batches that Triton formed.
#: Times: `zero`: no delay is configured; `soon`: all requests arrive within the delay; `late`: each
#: arrives after the delay of the previous one; `end`: all arrive within the delay, and the instance
#: becomes idle long afterwards.
WHILE_BUSY = [
    ((), "zero", (5, 5, 3), "a | b c"),
    ((), "zero", ROWS, "a b c d e | f g"),
    ((), "late", ROWS, "a b c d e | f g"),
    ((2,), "zero", (2, 2, 1), "a | b | c"),
    ((2,), "zero", (3, 1, 1), "a | b c"),
    ((2,), "zero", ROWS, "a b | c d | e | f | g"),
    ((2,), "soon", (2, 1), "a b"),
    ((2,), "soon", (1, 1, 1), "a b c"),
    ((2,), "soon", (2, 2, 1), "a b | c"),
    ((2,), "soon", ROWS, "a b c | d e | f | g"),
    ((2,), "late", (2, 1), "a b"),
    ((2,), "late", (3, 1, 1), "a b | c"),
    ((2,), "late", ROWS, "a b c d | e f g"),
    ((2,), "end", ROWS, "a b c d | e f g"),
    ((2, 4), "zero", (1,) * 8, "a b | c d e f | g h"),
    ((2, 4), "zero", (3, 1, 1), "a b | c"),
    ((2, 4), "zero", ROWS, "a b | c d e | f g"),
    ((2, 4), "soon", (2, 2, 1), "a b c"),
    ((2, 4), "soon", (4, 1, 1), "a b | c"),
    ((2, 4), "soon", ROWS, "a b c | d e | f g"),
    ((2, 4), "end", ROWS, "a b c d | e f g"),
    ((2, 4), "late", ROWS, "a b c d e | f g"),
]


@pytest.mark.parametrize(("preferred", "when", "rows", "made"), WHILE_BUSY)
def test_batches_formed_while_busy_match_triton(preferred, when, rows, made):
    delay, gap, rest = {
        "zero": (0, 2, 0),
        "soon": (3000, 2, 0),
        "late": (50, 80, 50),
        "end": (50, 2, 150),
    }[when]
    work, now = DynamicBatcher(8, preferred, delay * MS), 0
    for id, size in zip("abcdefgh", rows, strict=False):
        work.offer(a_request(id=id, batch_size=size, queued_ns=now), now)
        now += gap * MS
    now += rest * MS
    batches = []
    while len(work):
        batch = work.take(0, now)
        if batch is None:
            now = work.next_deadline_ns()
        else:
            batches.append(" ".join(request.id for request in batch))
            now += 5 * MS
    assert " | ".join(batches) == made


def test_overdue_batches_merge_only_with_equal_batch_keys():
    work = DynamicBatcher(8, (2,), 10)
    for index, key in enumerate("AAABA"):
        request = a_request(id=str(index), batch_key=key, queued_ns=100 * index)
        work.offer(request, 100 * index)
    found = [[request.id for request in work.take(0, 1000)] for _ in range(3)]
    assert found == [["0", "1", "2"], ["3"], ["4"]]


class Eager(DynamicBatcher):
    """A batcher that forms batches whenever a request arrives, as with a delay."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self._packs = False


@given(
    st.integers(1, 8),
    st.lists(
        st.one_of(st.none(), st.tuples(st.integers(1, 8), st.sampled_from("AB"))), max_size=30
    ),
)
def test_without_delay_lazy_and_eager_batches_are_equal(largest, steps):
    lazy, eager = DynamicBatcher(largest, (), 0), Eager(largest, (), 0)
    for now, step in enumerate(steps):
        if step is None:
            assert lazy.take(0, now) == eager.take(0, now)
        else:
            rows, key = step
            request = a_request(batch_size=min(rows, largest), batch_key=key, queued_ns=now)
            lazy.offer(request, now)
            eager.offer(request, now)
        assert len(lazy) == len(eager)


def test_cancelled_waiting_request_is_refused():
    work = DynamicBatcher(4, (), 0)
    first, second, third = (a_request(id=str(index)) for index in range(3))
    for request in (first, second, third):
        work.offer(request, 0)
    second.cancellation.cancel()
    assert work.take(0, 0) == [first, third]
    assert [refusal.request for refusal in work.refused(0)] == [second]


@pytest.mark.parametrize(
    "make", [Fifo, lambda: DynamicBatcher(3, (2,), 0)], ids=["fifo", "batcher"]
)
def test_cancelled_waiting_requests_are_refused_across_batches(make):
    work = make()
    requests = [a_request(id=str(index)) for index in range(6)]
    for request in requests:
        work.offer(request, 0)
    # The batcher has prepared batches of two: the first loses one request, the second both.
    for index in (0, 2, 3, 5):
        requests[index].cancellation.cancel()
    taken = [work.take(0, 0) for _ in range(3)]
    assert taken == [[requests[1]], [requests[4]], None]
    refused = work.refused(0)
    assert {refusal.request.id for refusal in refused} == {"0", "2", "3", "5"}
    assert {refusal.error.code for refusal in refused} == {Code.CANCELLED}
    assert work.refused(0) == ()
    assert len(work) == 0


# -------------------------------------------------------------------------------- single decisions


def offered(work, *rows, now_ns=0):
    requests = [a_request(batch_size=size, queued_ns=now_ns) for size in rows]
    for request in requests:
        work.offer(request, now_ns)
    return requests


@pytest.mark.parametrize("make", [Fifo, batcher], ids=["fifo", "batcher"])
def test_empty_queue(make):
    work = make()
    assert work.take(0, 0) is None
    assert work.next_deadline_ns() is None
    assert len(work) == 0


def test_deadline_depends_on_the_oldest_request():
    work = DynamicBatcher(8, (), 100)
    offered(work, 1, now_ns=10)
    offered(work, 1, now_ns=50)
    assert work.next_deadline_ns() is None  # no instance waits
    assert work.take(0, 50) is None
    assert work.next_deadline_ns() == 110


@pytest.mark.parametrize(("now_ns", "given"), [(109, None), (110, 1), (500, 1)])
def test_batch_is_ready_at_the_deadline(now_ns, given):
    work = DynamicBatcher(8, (), 100)
    offered(work, 1, now_ns=10)
    batch = work.take(0, now_ns)
    assert (batch and len(batch)) == given


def test_flush_ends_the_delay():
    work = DynamicBatcher(8, (), 100)
    requests = offered(work, 1, 2)
    work.flush()
    assert work.take(0, 0) == requests


def test_overdue_batch_includes_all_requests():
    work = DynamicBatcher(8, (2, 4), 100)
    requests = offered(work, 1, 1, 1)
    assert work.take(0, 100) == requests


# ----------------------------------------------------------------------------------- invariants


class QueueContract(RuleBasedStateMachine):
    """Invariants of every WorkQueue, for random requests and times."""

    max_rows = 1

    def __init__(self):
        super().__init__()
        self.now = 0
        self.offered = []
        self.taken = []
        self.delay = 0

    @rule(rows=st.integers(1, 8), key=st.sampled_from("AAB"))
    def offer(self, rows, key):
        rows = min(rows, self.max_rows)
        name = str(len(self.offered))
        request = a_request(id=name, batch_size=rows, batch_key=key, queued_ns=self.now)
        self.offered.append(request)
        self.work.offer(request, self.now)

    @rule(ns=st.integers(0, 30))
    def wait(self, ns):
        self.now += ns

    @rule()
    def take(self):
        batch = self.work.take(0, self.now)
        assert batch is None or batch
        self.check(batch or [])
        self.taken += batch or []
        waiting = self.offered[len(self.taken) :]
        if not batch and waiting:
            assert self.now - waiting[0].queued_ns < self.delay
            assert self.now < self.work.next_deadline_ns() <= waiting[0].queued_ns + self.delay

    def check(self, batch):
        assert len(batch) <= 1

    @rule()
    def flush(self):
        self.work.flush()
        self.delay = 0

    @precondition(lambda self: self.offered)
    @rule()
    def drain(self):
        self.flush()
        while len(self.work):
            self.take()
        assert self.taken == self.offered

    @invariant()
    def requests_leave_in_order_and_once(self):
        assert self.taken == self.offered[: len(self.taken)]
        assert len(self.work) == len(self.offered) - len(self.taken)


class FifoContract(QueueContract):
    max_rows = 8

    @initialize()
    def start(self):
        self.work = Fifo()


class BatcherContract(QueueContract):
    @initialize(
        max_rows=st.integers(1, 8),
        preferred=st.sets(st.integers(1, 8), max_size=3),
        delay=st.sampled_from([0, 1, 20]),
    )
    def start(self, max_rows, preferred, delay):
        self.max_rows = max_rows
        self.delay = delay
        fitting = tuple(sorted(size for size in preferred if size <= max_rows))
        self.work = DynamicBatcher(max_rows, fitting, delay)

    def check(self, batch):
        assert sum(request.batch_size for request in batch) <= self.max_rows
        assert len({request.batch_key for request in batch}) <= 1


STEPS = settings(max_examples=60, stateful_step_count=25)
TestFifoContract = FifoContract.TestCase
TestFifoContract.settings = STEPS
TestBatcherContract = BatcherContract.TestCase
TestBatcherContract.settings = STEPS
