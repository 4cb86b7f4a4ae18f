"""The instance scheduler: threads, delays, closing, rate limits, and changes of instances."""

import queue
import threading

import pytest
from server.support.clock import ManualClock
from server.support.instances import NotedOutcomes, ScriptedInstance
from server.support.requests import PATIENCE_S, Answers, BrokenSink, a_request
from server.support.sequences import Stage
from server.support.traces import NotedTrace
from support.waiting import until

from reference_server.config.scheduler_settings import (
    DynamicBatching,
    InstanceConfig,
    QueuePolicy,
    Resource,
)
from reference_server.core.errors import Code, ServerError, internal, not_found
from reference_server.core.request import Cancellation, SequenceFlag
from reference_server.core.telemetry import FailureReason
from reference_server.scheduling.dynamic_batcher import DynamicBatcher
from reference_server.scheduling.instance_scheduler import InstanceScheduler, Timer
from reference_server.scheduling.policy_batcher import PolicyBatcher
from reference_server.scheduling.rate_limiter import RateLimiter
from reference_server.scheduling.work_queue import STOPPED, Fifo

MS = 1_000_000


class Bench:
    """A scheduler with scripted instances, a clock and a recorder."""

    def __init__(self, work, count, **more):
        self.clock = ManualClock()
        self.outcomes = NotedOutcomes()
        self.work = work
        self._began = queue.SimpleQueue()
        self.instances = [ScriptedInstance(f"m_{index}", self._began.put) for index in range(count)]
        self.scheduler = InstanceScheduler(
            "m", 1, self.work, self.instances, self.outcomes, self.clock, **more
        )

    def submit(self, id, **fields):
        """Submit a request, and return its sink."""
        answers = Answers()
        self.scheduler.submit(a_request(id=id, sink=answers, **fields))
        return answers

    def started(self):
        """Return the ids of the next batch that any instance starts; fails on a timeout."""
        return self._began.get(timeout=PATIENCE_S)

    def finish_all(self):
        """Let one execution of each instance end."""
        for instance in self.instances:
            instance.finish()


@pytest.fixture
def bench():
    """A function that returns a bench with open, idle instances; it is closed after the test."""
    benches = []

    def build(work=None, *, count=1, **more):
        bench = Bench(Fifo() if work is None else work, count, **more)
        bench.scheduler.open()
        benches.append(bench)
        return bench

    yield build
    for bench in benches:
        bench.scheduler.close()
        assert len(bench.work) == 0


# ----------------------------------------------------------------------------------- execution


class ManualIteration:
    """An iteration of the event loop that the test ends."""

    def __init__(self):
        self.calls = []

    def at_end(self, call):
        self.calls.append(call)
        return True

    def end(self):
        for call in self.calls:
            call()


def test_requests_of_one_loop_iteration_form_one_batch(bench):
    iteration = ManualIteration()
    one = bench(DynamicBatcher(8, (), 0), iterations=iteration)
    for id in "abc":
        one.submit(id)
    assert one.scheduler.pending == 3
    iteration.end()
    assert one.started() == ["a", "b", "c"]
    one.finish_all()


def test_queue_with_limits_is_checked_for_each_request(bench):
    settings = DynamicBatching((), 0, default_policy=QueuePolicy(max_size=1))
    one = bench(PolicyBatcher(8, settings), iterations=ManualIteration())
    one.submit("a")
    assert one.started() == ["a"]
    one.submit("b")
    with pytest.raises(ServerError, match="Exceeds maximum queue size"):
        one.submit("c")
    one.finish_all()
    one.finish_all()


def test_instance_uses_one_thread_with_its_name(bench):
    one = bench()
    assert repr(one.scheduler).endswith(" version 1: 0 waiting, 1 of 1 instances idle)")
    (instance,) = one.instances
    instance.finish()
    one.submit("a").wait()
    one.scheduler.close()
    assert instance.done == ["open", "execute", "close"]
    (thread,) = {thread for _, thread in instance.threads}
    assert thread.name == "m_0"


@pytest.mark.parametrize("work", [None, DynamicBatcher(8, (), 0)], ids=["alone", "batched"])
def test_requests_are_pending_until_started(bench, work):
    two = bench(work, count=2)
    seen = []
    for id in "abcd":
        two.submit(id)
        seen.append(two.scheduler.pending)
    assert seen == [0, 0, 1, 2]
    for _ in "abcd":  # one instance may execute all requests but the other's first
        two.finish_all()


def test_requests_that_arrive_while_busy_form_one_batch(bench):
    one = bench(DynamicBatcher(8, (), 0))
    for id in "abcd":
        one.submit(id)
    assert one.started() == ["a"]
    one.finish_all()
    assert one.started() == ["b", "c", "d"]
    one.finish_all()


# ------------------------------------------------------------------------------------- the delay


def test_request_waits_for_the_delay(bench):
    one = bench(DynamicBatcher(8, (), 1 * MS))
    one.submit("a")
    one.submit("b")
    one.clock.advance(ns=1 * MS)
    assert one.started() == ["a", "b"]
    one.finish_all()


# ------------------------------------------------------------------------------------- responses


def test_response_has_the_timing_of_the_recorder(bench):
    one = bench()
    one.finish_all()
    assert one.submit("a").wait().timing == NotedOutcomes.TIMING
    assert one.outcomes.ran == [["a"]]


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        pytest.param(not_found("no such thing"), Code.NOT_FOUND, "no such thing", id="an error"),
        pytest.param(ValueError("a defect"), Code.INTERNAL, "ValueError: a defect", id="a defect"),
    ],
)
def test_failed_execution_fails_the_whole_batch(bench, raised, code, text):
    one = bench(DynamicBatcher(8, (), 0))
    one.submit("a")
    answers = [one.submit("b"), one.submit("c")]
    (instance,) = one.instances
    instance.finish()
    instance.finish(raised)
    responses = [answer.wait() for answer in answers]
    assert [response.id for response in responses] == ["b", "c"]
    for response in responses:
        assert (response.error.code, response.error.message) == (code, text)
    assert one.outcomes.broke == [["b", "c"]]


# ------------------------------------------------------------------------------- open and close


@pytest.mark.parametrize(
    "raised", [internal("init no good"), KeyboardInterrupt()], ids=["an error", "an exit"]
)
def test_failed_open_closes_the_other_instances(raised):
    good, bad = ScriptedInstance("m_0"), ScriptedInstance("m_1", opening=raised)
    scheduler = InstanceScheduler("m", 1, Fifo(), [good, bad], NotedOutcomes(), ManualClock())
    with pytest.raises(type(raised)) as caught:
        scheduler.open()
    assert caught.value is raised
    assert good.done == ["open", "close"]
    assert bad.done == ["open"]


def test_close_ends_the_delay_of_waiting_requests(bench):
    one = bench(DynamicBatcher(8, (), 3600 * 1000 * MS))
    answers = [one.submit("a"), one.submit("b")]
    one.finish_all()
    one.scheduler.close()
    assert not any(answer.is_empty for answer in answers)
    assert one.instances[0].done == ["open", "execute", "close"]


def test_close_runs_all_waiting_requests(bench):
    one = bench()
    answers = [one.submit(id) for id in "abc"]
    (instance,) = one.instances
    assert one.started() == ["a"]
    closing = threading.Thread(target=one.scheduler.close)
    closing.start()
    for _ in "abc":
        instance.finish()
    closing.join(PATIENCE_S)
    assert [answer.wait().id for answer in answers] == ["a", "b", "c"]
    assert instance.done[-1] == "close"


def test_closed_scheduler_refuses_requests(bench):
    one = bench()
    one.scheduler.close()
    answers = Answers()
    with pytest.raises(ServerError) as caught:
        one.scheduler.submit(a_request(id="q", sink=answers))
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == (
        "[request id: q] Server is stopping, scheduler for model has stopped accepting new "
        "inference requests"
    )
    assert answers.is_empty


# --------------------------------------------------------------------------------------- tracing


@pytest.mark.parametrize(
    ("outcome", "times"), [(None, (0, 0, 0)), (internal("broken"), (0, 0, 0))], ids=["ran", "broke"]
)
def test_trace_is_recorded_before_the_response(bench, outcome, times):
    one = bench()
    trace = NotedTrace()
    answers = one.submit("a", trace=trace)
    one.started()
    one.instances[0].finish(outcome)
    answers.wait()
    assert trace.events == [("answered", [], times)]


# ------------------------------------------------------------------------- refusals and deadlines


def policies(**policy):
    return PolicyBatcher(4, DynamicBatching((), 0, default_policy=QueuePolicy(**policy)))


def test_full_queue_refuses_without_counting(bench):
    one = bench(policies(max_size=1))
    one.submit("a")
    one.submit("b")
    with pytest.raises(ServerError, match="Exceeds maximum queue size"):
        one.submit("c")
    assert one.outcomes.refusals == []
    one.finish_all()
    one.finish_all()


def test_expired_request_is_answered_while_instances_are_busy(bench):
    one = bench(policies(timeout_us=1000))
    one.submit("a")
    trace = NotedTrace()
    answers = one.submit("b", trace=trace)
    assert one.started() == ["a"]
    one.clock.advance(ns=1 * MS)
    error = answers.wait().error
    assert (error.code, error.message) == (Code.UNAVAILABLE, "Request timeout expired")
    assert one.outcomes.refusals == [("b", FailureReason.REJECTED)]
    assert trace.events == [("answered", [], None)]
    assert one.scheduler.pending == 0
    one.finish_all()


def test_cancelled_request_is_answered_when_the_queue_reaches_it(bench):
    one = bench(policies(max_size=9))
    one.submit("a")
    cancellation = Cancellation()
    answers = one.submit("b", cancellation=cancellation)
    cancellation.cancel()
    one.finish_all()
    assert answers.wait().error.code is Code.CANCELLED
    assert one.outcomes.refusals == [("b", FailureReason.CANCELED)]


def test_failing_sink_does_not_affect_other_requests(bench):
    one = bench(policies(timeout_us=1000))
    one.submit("a")
    one.scheduler.submit(a_request(id="b", sink=BrokenSink()))
    answers = one.submit("c")
    one.clock.advance(ns=1 * MS)
    assert answers.wait().error is not None
    one.finish_all()


class Handover:
    """A WorkQueue that gives work to the instances alternately, after the other has finished."""

    takes_all = False

    def __init__(self):
        self.waiting = []
        self.again = []
        self.next_instance = 0

    def __len__(self):
        return len(self.waiting)

    def offer(self, request, now_ns):
        self.waiting.append(request)

    def take(self, instance, now_ns):
        if self.waiting and instance == self.next_instance:
            self.next_instance = None
            return [self.waiting.pop(0)]
        return None

    def finished(self, instance, batch, again, now_ns):
        self.next_instance = 1 - instance
        self.waiting[:0] = again

    def refused(self, now_ns):
        return ()

    def next_deadline_ns(self):
        return None

    def flush(self):
        pass


def test_finished_batch_may_release_work_for_another_instance(bench):
    two = bench(Handover(), count=2)
    first, second = two.instances
    for id in "abc":
        two.submit(id)
    for id, instance in zip("abc", [first, second, first], strict=True):
        assert two.started() == [id]
        instance.finish()
    two.scheduler.close()
    assert first.done == ["open", "execute", "execute", "close"]


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_open_sequence_is_in_flight_and_accepted_until_close(bench, strategy):
    one = bench(Stage(f"{strategy} {{ }} max_sequence_idle_microseconds: 3600000000").work)
    one.submit("a", correlation_id=1, flags=SequenceFlag.START)
    one.started()
    one.finish_all()
    assert one.scheduler.in_flight == 1
    one.scheduler.refuse()
    with pytest.raises(ServerError) as caught:
        one.submit("b", correlation_id=2, flags=SequenceFlag.START)
    assert caught.value.message == STOPPED
    answer = one.submit("c", correlation_id=1, flags=SequenceFlag.END)
    one.started()
    one.finish_all()
    assert answer.wait().id == "c"
    until(lambda: one.scheduler.in_flight == 0)


# ---------------------------------------------------------------------------------- rate limiter


@pytest.fixture
def limited(bench):
    """A function that returns a bench whose instances share one unit of a resource."""
    limiter = RateLimiter(None)

    def build(work=None, *, count=1):
        config = InstanceConfig("m_0", "CPU", 1, (Resource("R", 1, is_global=False),))
        return bench(work, count=count, limiter=limiter, rate_limited=limiter.add([config] * count))

    return build


def test_rate_limited_models_alternate(limited):
    one, other = limited(), limited()
    one.submit("a")
    assert one.started() == ["a"]
    other.submit("b")
    one.submit("c")
    assert (one.scheduler.pending, other.scheduler.pending) == (1, 1)
    one.instances[0].finish()
    assert other.started() == ["b"]
    other.instances[0].finish()
    assert one.started() == ["c"]
    one.instances[0].finish()


def test_batch_is_formed_when_the_limiter_grants_it(limited):
    one, other = limited(), limited(DynamicBatcher(8, (), 0), count=2)
    one.submit("a")
    for id in "bcd":
        other.submit(id)
    assert one.started() == ["a"]
    one.finish_all()
    assert other.started() == ["b", "c", "d"]
    other.finish_all()


def test_grant_without_work_is_released(limited):
    one = limited(DynamicBatcher(8, (), 1 * MS))
    other = limited()
    one.submit("a")
    other.submit("b")
    assert other.started() == ["b"]
    other.finish_all()
    one.clock.advance(ns=1 * MS)
    assert one.started() == ["a"]
    one.finish_all()


def test_close_runs_requests_that_wait_for_the_limiter(limited):
    one, other = limited(), limited(count=2)
    one.submit("a")
    answers = [other.submit(id) for id in "bc"]
    closing = threading.Thread(target=other.scheduler.close)
    closing.start()
    one.finish_all()
    for _ in "bc":
        other.finish_all()
    closing.join(PATIENCE_S)
    assert {answer.wait().id for answer in answers} == {"b", "c"}


# --------------------------------------------------------------------------- changes of instances


class Changes:
    """Changes the instances of a bench, and records closed instances."""

    def __init__(self, bench):
        self._bench = bench
        self._left = queue.SimpleQueue()

    def add(self, *names, leaving=(), opening=None, settings=()):
        began = self._bench._began.put
        added = [ScriptedInstance(name, began, opening=opening) for name in names]
        numbers = self._bench.scheduler.change(
            added, leaving, settings, lambda name, last: self._left.put((name, last))
        )
        self._bench.instances += added
        return numbers

    def left(self):
        return self._left.get(timeout=PATIENCE_S)


def test_added_instance_takes_waiting_requests(bench):
    one = bench()
    answers = [one.submit(id) for id in "ab"]
    assert one.started() == ["a"]
    assert Changes(one).add("m_1") == [1]
    assert one.started() == ["b"]
    one.finish_all()
    assert [answer.wait().id for answer in answers] == ["a", "b"]


def test_batcher_prepares_batches_for_added_instances(bench):
    one = bench(DynamicBatcher(1, (), 0))
    answers = [one.submit(id) for id in "abc"]
    assert one.started() == ["a"]
    Changes(one).add("m_1", "m_2")
    assert sorted([one.started(), one.started()]) == [["b"], ["c"]]
    one.finish_all()
    assert {answer.wait().id for answer in answers} == {"a", "b", "c"}


def test_removed_instance_closes_when_idle_and_frees_its_number(bench):
    one = bench(count=2)
    changes = Changes(one)
    answers = [one.submit(id) for id in "abc"]
    assert sorted([one.started(), one.started()]) == [["a"], ["b"]]
    changes.add(leaving=[0, 1])
    for instance in one.instances[:2]:
        assert "close" not in instance.done
        instance.finish()
    assert sorted([changes.left(), changes.left()]) == [("m_0", True), ("m_1", True)]
    assert all(instance.done[-1] == "close" for instance in one.instances)
    assert one.scheduler.pending == 1
    assert changes.add("m_0") == [0]
    assert one.started() == ["c"]
    one.instances[2].finish()
    assert {answer.wait().id for answer in answers} == {"a", "b", "c"}


def test_failed_open_of_an_added_instance_changes_nothing(bench):
    one = bench()
    with pytest.raises(ServerError, match="no more"):
        Changes(one).add("m_1", leaving=[0], opening=internal("no more"))
    answer = one.submit("a")
    assert one.started() == ["a"]
    one.finish_all()
    assert answer.wait().id == "a"


def test_rate_limiter_counts_current_instances(limited):
    one = limited()
    changes = Changes(one)
    greedy = InstanceConfig("m_1", "CPU", 1, (Resource("R", 2, is_global=False),))
    answers = [one.submit(id) for id in "ab"]
    assert one.started() == ["a"]
    changes.add("m_1", leaving=[0], settings=[greedy])
    one.instances[0].finish()
    assert changes.left() == ("m_0", True)
    assert one.started() == ["b"]
    one.instances[1].finish()
    assert [answer.wait().id for answer in answers] == ["a", "b"]


HOUR_NS = 3_600_000 * MS


@pytest.fixture
def ringing():
    """A timer, its clock, and the times at which it has fired."""
    clock, fires = ManualClock(), queue.SimpleQueue()
    timer = Timer("test", clock, lambda: fires.put(clock.now_ns))
    yield timer, clock, fires
    timer.close()


def test_fires_once_at_its_time(ringing):
    timer, clock, fires = ringing
    timer.set(1 * MS)
    clock.advance(ns=1 * MS)
    assert fires.get(timeout=PATIENCE_S) == 1 * MS
    timer.close()
    assert fires.empty()


def test_earliest_time_counts(ringing):
    timer, clock, fires = ringing
    timer.set(HOUR_NS)
    timer.set(1 * MS)
    timer.set(HOUR_NS)
    clock.advance(ns=1 * MS)
    assert fires.get(timeout=PATIENCE_S) == 1 * MS


def test_closed_timer_does_not_fire(ringing):
    timer, clock, fires = ringing
    timer.set(HOUR_NS)
    timer.close()
    clock.advance(ns=HOUR_NS)
    timer.set(0)
    timer.close()
    assert fires.empty()
