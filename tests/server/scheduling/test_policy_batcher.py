"""The policy batcher: priorities, queue limits, timeouts, and invariants."""

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


def refused(work, now=0):
    return [(refusal.request.id, refusal.error.message) for refusal in work.refused(now)]


EXPIRED = "Request timeout expired"


def test_lower_level_runs_first_and_batches_may_mix_levels():
    work = batcher(levels=3, default_level=2)
    for id, priority in (("a3", 3), ("b0", 0), ("c1", 1), ("d3", 3), ("e1", 1), ("f9", 9)):
        offer(work, id, priority=priority)
    assert taken(work) == ["c1 e1 b0 f9", "a3 d3"]


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


def test_level_may_have_its_own_policy():
    work = batcher(
        levels=2,
        default_level=2,
        default_policy=QueuePolicy(max_size=1),
        policies={1: QueuePolicy(max_size=2)},
    )
    offer(work, "a", "b", priority=1)
    offer(work, "c")
    for priority in (1, 2):
        with pytest.raises(ServerError):
            offer(work, "d", priority=priority)


def test_expired_request_is_refused_without_idle_instances():
    work = batcher(default_policy=QueuePolicy(HOUR_US))
    offer(work, "a")
    offer(work, "b", now=5)
    assert work.next_deadline_ns() == HOUR_US * US
    assert refused(work, HOUR_US * US - 1) == []
    assert refused(work, HOUR_US * US) == [("a", EXPIRED)]
    assert work.next_deadline_ns() == HOUR_US * US + 5
    assert taken(work, HOUR_US * US) == ["b"]
    assert work.next_deadline_ns() is None


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
    assert taken(work, 0) == ["b"]
    assert refused(work, 0) == [("a", EXPIRED)]


def test_request_timeout_needs_a_policy_timeout():
    work = batcher(default_policy=QueuePolicy(0, overridable=True, max_size=9))
    offer(work, "a", timeout_us=10)
    assert work.next_deadline_ns() is None


def test_delayed_requests_run_after_others_of_their_level():
    policy = QueuePolicy(100, delays=True, overridable=True)
    work = batcher(levels=2, default_level=1, default_policy=policy)
    offer(work, "x", priority=2)
    offer(work, "a")
    offer(work, "b", timeout_us=10)
    offer(work, "c", now=150 * US)
    assert work.next_deadline_ns() is None
    assert taken(work, 200 * US) == ["c a b x"]
    assert refused(work) == []


def test_cancelled_request_is_dropped_when_reached():
    work = batcher(levels=1, default_level=1)
    requests = offer(work, *"abcdef")
    for index in (0, 2, 5):
        requests[index].cancellation.cancel()
    assert taken(work) == ["b d e"]
    assert [id for id, _ in refused(work)] == ["a", "c", "f"]
    assert len(work) == 0


SECOND = 1_000_000_000


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


def test_waiting_instance_looks_again_only_for_enough_rows():
    policy = QueuePolicy(HOUR_US, overridable=True)
    work = batcher(8, (4,), 10 * HOUR_US, default_policy=policy)
    offer(work, "a")
    assert taken(work) == []
    offer(work, "b", timeout_us=10)
    assert taken(work) == []
    assert work.next_deadline_ns() == HOUR_US * US  # not yet that of b
    offer(work, "c", now=20 * US, batch_size=2)
    assert taken(work, 20 * US) == []
    offer(work, "d", now=30 * US, batch_size=1)
    assert taken(work, 30 * US) == ["a c d"]


def test_compared_shapes_make_each_arrival_cause_a_look():
    settings = DynamicBatching((4,), 10 * HOUR_US, default_policy=QueuePolicy(HOUR_US))
    work = PolicyBatcher(8, settings, compares_shapes=True)
    offer(work, "a", batch_key=1)
    assert taken(work) == []
    offer(work, "b", batch_key=2)
    assert taken(work) == ["a"]


def test_refusal_before_a_wait_is_answered_after_it():
    work = batcher(8, (4,), 10 * HOUR_US, default_policy=QueuePolicy(HOUR_US, overridable=True))
    offer(work, "a", timeout_us=10)
    offer(work, "b")
    assert taken(work) == []
    assert taken(work, 10 * US) == []
    assert refused(work, 10 * US) == []
    offer(work, "c", now=20 * US, batch_size=3)
    assert taken(work, 20 * US) == ["b c"]
    assert refused(work, 20 * US) == [("a", EXPIRED)]


def test_request_of_a_higher_level_joins_the_pending_batch_in_its_place():
    work = batcher(4, (), 100, levels=2, default_level=2)
    offer(work, "a", batch_size=2)
    assert taken(work) == []
    offer(work, "b", now=1, priority=1, batch_size=2)
    assert taken(work, 1) == ["b a"]


def test_request_that_is_cancelled_in_the_pending_batch_counts_but_does_not_run():
    work = batcher(8, (4,), 10 * HOUR_US, default_policy=QueuePolicy(HOUR_US))
    (first,) = offer(work, "a", batch_size=2)
    assert taken(work) == []
    first.cancellation.cancel()
    offer(work, "b", now=1, batch_size=2)
    assert taken(work, 1) == ["b"]
    assert [id for id, _ in refused(work, 1)] == ["a"]


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
