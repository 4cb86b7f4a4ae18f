"""The policy batcher: what tests/recorded/test_queues.py does not play, and invariants."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from server.support.requests import a_request

from reference_server.config.scheduler_settings import DynamicBatching, QueuePolicy
from reference_server.core.errors import Code, ServerError
from reference_server.scheduling.policy_batcher import PolicyBatcher

US = 1000
HOUR_US = 3_600_000_000
SECOND = 1_000_000_000


def batcher(max_rows=4, preferred=(), delay_us=0, **more):
    return PolicyBatcher(max_rows, DynamicBatching(preferred, delay_us, **more))


def offer(work, *ids, now=0, **fields):
    requests = [a_request(id=id, queued_ns=now, **fields) for id in ids]
    for request in requests:
        work.offer(request, now)
    return requests


def taken(work, now=0):
    """Take all ready batches, and return their ids."""
    batches = []
    while batch := work.take(0, now):
        batches.append(" ".join(request.id for request in batch))
    return batches


def test_cost_does_not_depend_on_the_number_of_levels():
    most = 2**64 - 1
    work = batcher(levels=most, default_level=2**40)
    for id, priority in (("last", most), ("default", 0), ("first", 1), ("next", 2**32)):
        offer(work, id, priority=priority)
    assert taken(work) == ["first next default last"]


def test_full_queue_refuses_and_keeps_waiting_requests():
    work = batcher(default_policy=QueuePolicy(max_size=2))
    offer(work, "a", "b", batch_size=3)
    with pytest.raises(ServerError) as caught:
        offer(work, "c")
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == "[request id: c] Exceeds maximum queue size"
    assert taken(work) == ["a", "b"]
    offer(work, "d")
    assert len(work) == 1


@pytest.mark.parametrize(
    ("asked_us", "overridable", "limit_us"),
    [(10, True, 10), (10, False, 100), (0, True, 100), (1000, True, 100)],
)
def test_request_timeout_may_override_the_policy(asked_us, overridable, limit_us):
    work = batcher(default_policy=QueuePolicy(100, overridable=overridable))
    offer(work, "a", timeout_us=asked_us)
    assert work.next_deadline_ns() == limit_us * US


def test_timeout_of_few_microseconds_expires_immediately():
    work = batcher(default_policy=QueuePolicy(100, overridable=True))
    offer(work, "a", timeout_us=5)
    offer(work, "b", timeout_us=6)
    assert taken(work) == ["b"]
    assert [str(refusal.error) for refusal in work.refused(0)] == ["Request timeout expired"]


def test_batch_is_formed_anew_when_one_of_its_requests_is_delayed():
    policy = QueuePolicy(HOUR_US, delays=True, overridable=True)
    work = batcher(64, (4, 8, 32), 10_000_000, default_policy=policy)
    offer(work, "a", batch_size=3)
    assert taken(work) == []
    offer(work, "b", now=SECOND, batch_size=2, timeout_us=1_500_000)
    assert taken(work, SECOND) == []
    offer(work, "c", now=2 * SECOND, batch_size=5)
    assert taken(work, 2 * SECOND) == []
    assert work.next_deadline_ns() == 2.5 * SECOND
    assert taken(work, int(2.5 * SECOND)) == ["a c"]
    assert work.next_deadline_ns() == 11 * SECOND
    assert taken(work, 11 * SECOND) == ["b"]


def test_compared_shapes_make_each_arrival_cause_a_look():
    settings = DynamicBatching((4,), 10 * HOUR_US, default_policy=QueuePolicy(HOUR_US))
    work = PolicyBatcher(8, settings, compares_shapes=True)
    offer(work, "a", batch_key=1)
    assert taken(work) == []
    offer(work, "b", batch_key=2)
    assert taken(work) == ["a"]


def test_request_that_is_cancelled_in_the_pending_batch_counts_but_does_not_run():
    work = batcher(8, (4,), 10 * HOUR_US, default_policy=QueuePolicy(HOUR_US))
    (first,) = offer(work, "a", batch_size=2)
    assert taken(work) == []
    first.cancellation.cancel()
    offer(work, "b", now=1, batch_size=2)
    assert taken(work, 1) == ["b"]
    assert [refusal.request.id for refusal in work.refused(1)] == ["a"]


class PolicyContract(RuleBasedStateMachine):
    """Invariants: each request leaves once, levels are in order, and no batch is too large."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.waiting = {}

    @initialize(
        levels=st.integers(0, 3),
        timeout=st.sampled_from([0, 20]),
        delays=st.booleans(),
        max_size=st.sampled_from([0, 3]),
        delay=st.sampled_from([0, 7]),
        rows=st.integers(1, 5),
    )
    def start(self, levels, timeout, delays, max_size, delay, rows):
        self.rows, self.delay, self.max_size = rows, delay, max_size
        self.timeout = 0 if delays else timeout
        policy = QueuePolicy(timeout, delays, overridable=True, max_size=max_size)
        self.levels = levels
        self.work = batcher(
            rows, (), delay, levels=levels, default_level=levels, default_policy=policy
        )

    def level(self, request):
        inside = 1 <= request.priority <= self.levels
        return request.priority if inside else self.levels

    @rule(rows=st.integers(1, 5), priority=st.integers(0, 4), timeout=st.sampled_from([0, 8]))
    def offer(self, rows, priority, timeout):
        request = a_request(
            id=str(self.now),
            batch_size=min(rows, self.rows),
            priority=priority,
            timeout_us=timeout,
            queued_ns=self.now * US,
        )
        same = [
            other for other in self.waiting.values() if self.level(other) == self.level(request)
        ]
        try:
            self.work.offer(request, self.now * US)
        except ServerError:
            assert len(same) >= self.max_size > 0
        else:
            self.waiting[id(request)] = request
        self.collect()

    @rule(us=st.integers(1, 10))
    def wait(self, us):
        self.now += us

    @rule(data=st.data())
    def cancel(self, data):
        if self.waiting:
            data.draw(st.sampled_from(list(self.waiting.values()))).cancellation.cancel()

    @rule()
    def take(self):
        batch = self.work.take(0, self.now * US)
        self.collect()
        for request in batch or ():
            assert self.waiting.pop(id(request)) is request
            assert not request.cancellation.is_cancelled
        levels = [self.level(request) for request in batch or ()]
        assert levels == sorted(levels)
        assert sum(request.batch_size for request in batch or ()) <= self.rows
        if not batch:
            assert all(self.now * US - r.queued_ns < self.delay * US for r in self.waiting.values())
        elif self.waiting:
            first = min(self.level(r) for r in self.waiting.values())
            assert levels[0] <= first  # requests of lower levels run first

    def collect(self):
        for request, error in self.work.refused(self.now * US):
            assert self.waiting.pop(id(request)) is request
            if error.code is not Code.CANCELLED:
                waited = self.now * US - request.queued_ns
                assert self.timeout
                assert waited >= (request.timeout_us or self.timeout) * US

    @invariant()
    def each_is_accounted_for(self):
        if self.waiting:
            assert len(self.work) == len(self.waiting)
        if self.waiting and not self.work._refused_next:
            assert self.work._queue.rows == sum(r.batch_size for r in self.waiting.values())

    def teardown(self):
        if not hasattr(self, "work"):
            return
        self.work.flush()
        while len(self.work):
            self.delay = 0
            self.take()
        assert not self.waiting


TestPolicyContract = PolicyContract.TestCase
TestPolicyContract.settings = settings(max_examples=40, stateful_step_count=30)
TestPolicyContract.pytestmark = pytest.mark.brute_force
