"""The executions of a request batch; only the executor is a test double."""

import logging
import math
from contextlib import contextmanager

import pytest

from ge_runtime.batching.admission import Block
from ge_runtime.batching.cost import TRIAL, CostEvidence, CostModel, LiveCost
from ge_runtime.batching.gears import Gears
from ge_runtime.batching.partition import BatchPartitioner
from ge_runtime.counts import Counts, SharedCounts
from ge_runtime.errors import (
    Cancelled,
    EngineFault,
    Expired,
    OutOfMemory,
    PoolTimeout,
    RuntimeFault,
)
from ge_runtime.scheduling.request_batch import ANONYMOUS_CALLER, Caller, RequestBatch
from ge_runtime.testing import ManualClock

COST = CostModel(1.0, 1e-6, 0.0, (("tokens",),))
STEEP = CostModel(1e-5, 0.0, 0.0, (("tokens",),), 1.0)
"""A cost by which requests lose by sharing an execution."""
FREE = Gears(["tokens"], {"tokens": 256}, 16, {})


class Executor:
    """Answers each block with its size, unless `fail` raises; records the gears."""

    def __init__(self, fail=lambda tokens: None):
        self.fail, self.gears = fail, []
        self.left_s, self.is_cancelled = [], []

    def execute(self, blocks, gear, limits):
        within, is_cancelled = limits
        self.left_s.append(within())
        self.is_cancelled.append(is_cancelled())
        self.gears.append(gear)
        self.fail([block.sizes["tokens"] for block in blocks])
        return [{"size": block.sizes["tokens"]} for block in blocks], Counts(
            launches=1, measured_seconds=0.25, useful_elements=3, executed_elements=4
        )


class Leases:
    """A workspace that records requests, and refuses the executions counted in `refused`."""

    def __init__(self, refused=(), waited_s=0.0):
        self.refused, self.gears, self.waited_s = refused, [], waited_s

    @contextmanager
    def lease(self, gear, deadline):
        self.gears.append(gear)
        if len(self.gears) - 1 in self.refused:
            raise PoolTimeout("no workspace")
        yield self.waited_s


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def execute(clock):
    """Return a function: sizes, executor and options of the batch -> answers and counts."""

    def execute(
        tokens,
        executor,
        *,
        callers=None,
        gears=None,
        workspace=None,
        capacity=16,
        costs=None,
        cost=COST,
        reports=None,
    ):
        shared = SharedCounts()
        sizes = [size if isinstance(size, dict) else {"tokens": size} for size in tokens]
        request_batch = RequestBatch(
            [Block(1, own, {}, {}, needs=own) for own in sizes],
            callers or [ANONYMOUS_CALLER] * len(tokens),
            gears=gears,
            partitioner=BatchPartitioner(gears or FREE, cost, capacity),
            costs=costs or LiveCost(cost),
            workspace=workspace,
            counts=shared,
            clock=clock,
        )
        for execution in request_batch.plan():
            request_batch.run(execution, executor, (reports if reports is not None else []).append)
        return request_batch.results(), shared.snapshot()

    return execute


def fail_if(culprit, fault=EngineFault):
    def fail(tokens):
        if culprit in tokens:
            raise fault("poison")

    return fail


def test_predicted_and_failed_executions_are_counted(execute):
    counts = execute([3, 1, 2], Executor())[1]
    assert counts.predicted_seconds == COST.seconds(3, {"tokens": 3})
    assert counts.failed_launches == 0
    counts = execute([5, 7], Executor(fail_if(7)))[1]
    # Together, and then the failing one alone.
    assert (counts.launches, counts.failed_launches, counts.isolations) == (1, 2, 2)
    assert counts.predicted_seconds == COST.seconds(1, {"tokens": 5})
    assert execute([7], Executor(fail_if(7, ValueError)))[1].failed_launches == 1


def test_a_request_abandoned_while_waiting_for_the_device_is_not_a_failed_execution(execute):
    counts = execute([7], Executor(fail_if(7, Cancelled)))[1]
    assert (counts.failed_launches, counts.departed) == (0, 1)


def test_costs_learn_what_executions_take(execute):
    seen = []

    class Learning(LiveCost):
        def observe(self, rows, extents, seconds, *, shared, valid):
            seen.append((rows, dict(extents), seconds, shared))
            return False

    execute([3, 1], Executor(), costs=Learning(COST))
    assert seen == [(2, {"tokens": 3}, 0.25, True)]
    execute([4], Executor(), costs=Learning(COST))
    assert seen[1:] == [(1, {"tokens": 4}, 0.25, False)]


def test_a_trial_joins_two_requests_after_many_single_executions(execute):
    costs, executor = LiveCost(STEEP, CostEvidence()), Executor()
    for _ in range(TRIAL // 4):
        execute([2, 8, 9, 2], executor, costs=costs, cost=STEEP)
    assert {gear.rows for gear in executor.gears} == {1}
    execute([2, 8, 9, 2], executor, costs=costs, cost=STEEP)
    assert [gear.rows for gear in executor.gears[TRIAL:]] == [2, 1, 1]
    execute([2, 8, 9, 2], executor, costs=costs, cost=STEEP)
    assert [gear.rows for gear in executor.gears[TRIAL + 3 :]] == [1, 1, 1, 1]


def test_no_trial_makes_a_request_late(execute):
    costs, executor = LiveCost(STEEP, CostEvidence()), Executor()
    for _ in range(TRIAL + 1):
        execute([2, 2], executor, costs=costs, cost=STEEP, callers=[Caller(deadline=1e9)] * 2)
    assert {gear.rows for gear in executor.gears} == {1}


def test_answered_requests_are_reported_after_each_execution(execute):
    reports = []
    execute([9, 1, 5], Executor(), capacity=1, reports=reports)
    assert reports == [([0], 1.000009), ([2], 1.000005), ([1], 1.000001)]


def test_each_half_of_a_failed_execution_is_reported(execute):
    reports, seen = [], []

    def fail(tokens):
        seen.append((tokens, [list(answered.members) for answered in reports]))
        fail_if(4)(tokens)

    execute([1, 2, 3, 4], Executor(fail), reports=reports)
    assert seen == [
        ([1, 2, 3, 4], []),
        ([1, 2], []),
        ([3, 4], [[0, 1]]),
        ([3], [[0, 1]]),
        ([4], [[0, 1], [2]]),
    ]
    assert [list(answered.members) for answered in reports] == [[0, 1], [2], [3]]
    assert [answered.seconds > 0 for answered in reports] == [False, False, True]


def test_requests_that_need_no_execution_are_reported_first(execute, clock):
    reports, seen = [], []
    clock.advance(1.0)
    executor = Executor(lambda tokens: seen.append([own.members for own in reports]))
    execute([5, 6], executor, callers=[Caller(deadline=0.5), ANONYMOUS_CALLER], reports=reports)
    assert seen == [[[0]]]
    assert [own.members for own in reports] == [[0], [1]]


def test_cancellation_is_not_polled_after_the_answer(execute):
    """tritonserver crashes if it is asked about a request whose answer has been sent."""
    reports, asked = [], []

    def is_cancelled(member):
        asked.append(member)
        assert member not in [own for answered in reports for own in answered.members]
        return False

    executor = Executor(fail_if(4))
    callers = [Caller(is_cancelled=lambda member=member: is_cancelled(member)) for member in (0, 1)]
    execute([1, 4], executor, callers=callers, reports=reports)
    assert executor.is_cancelled == [False] * 3
    assert {0, 1} == set(asked)


def test_the_earliest_answers_and_deadlines_are_first(clock):
    def order(deadlines):
        batch = RequestBatch(
            [Block(1, {"tokens": size}, {}, {}, needs={"tokens": size}) for size in sizes],
            [Caller(deadline=deadline) for deadline in deadlines],
            gears=None,
            partitioner=BatchPartitioner(gears, COST, 1),
            costs=LiveCost(COST),
            workspace=None,
            counts=SharedCounts(),
            clock=clock,
        )
        plan = batch.plan()
        return [sizes[plan[place].members[0]] for place in batch.earliest_answers(plan)]

    clock.advance(50.0)
    sizes = [10**6, 3 * 10**6, 1]  # 2.0, 4.0 and 1.0 s
    gears = Gears(["tokens"], {"tokens": 10**7}, 16, {})
    assert order([math.inf] * 3) == [1, 10**6, 3 * 10**6]
    # The first to arrive would be late by fairness, and so precedes the shorter one.
    assert order([math.inf, 54.5, math.inf]) == [3 * 10**6, 10**6, 1]


def test_a_defect_in_one_execution_affects_only_its_requests(execute, caplog):
    executor = Executor(fail_if(7, ValueError))
    answers, counts = execute(
        [5, 7, 9], executor, callers=[Caller("a"), Caller("b"), ANONYMOUS_CALLER], capacity=1
    )
    assert (answers[0], answers[2]) == ({"size": 5}, {"size": 9})
    assert type(answers[1]) is RuntimeFault
    assert str(answers[1]) == "[request id: b] ValueError: poison"
    assert type(answers[1].__cause__.__cause__) is ValueError
    assert (counts.launches, counts.isolations, counts.culprits) == (2, 0, 0)
    (record,) = caplog.records
    assert (record.levelno, record.exc_info[0]) == (logging.ERROR, ValueError)


def test_a_failed_cancellation_poll_affects_only_its_execution(execute):
    callers = [Caller(is_cancelled=lambda: 1 / 0), ANONYMOUS_CALLER]
    broken, answered = execute([5, 7], Executor(), callers=callers, capacity=1)[0]
    assert str(broken) == "ZeroDivisionError: division by zero"
    assert answered == {"size": 7}


def test_a_refused_lease_fails_only_its_execution(execute):
    answers, counts = execute([5, 7], Executor(), workspace=Leases(refused={0}), capacity=1)
    assert sorted(map(type, answers), key=repr) == [dict, PoolTimeout]
    assert counts.departed == 0


def test_a_request_abandoned_during_isolation_is_not_a_culprit(execute, clock):
    def fail(tokens):
        clock.advance(1.0)
        fail_if(4)(tokens)

    callers = [Caller(deadline=1.5)] * 3 + [ANONYMOUS_CALLER]
    answers, counts = execute([1, 2, 3, 4], Executor(fail), callers=callers)
    assert [type(answer) for answer in answers] == [dict, dict, Expired, EngineFault]
    assert (counts.departed, counts.culprits) == (1, 1)


def test_a_request_abandoned_while_waiting_for_workspace_is_not_executed(execute, clock):
    class Slow(Leases):
        def lease(self, gear, deadline):
            clock.advance(2.0)
            return super().lease(gear, deadline)

    executor = Executor()
    callers = [Caller(deadline=1.0), ANONYMOUS_CALLER]
    answers, _ = execute([1, 2], executor, callers=callers, workspace=Slow())
    assert [type(answer) for answer in answers] == [Expired, dict]
    assert [gear.rows for gear in executor.gears] == [1]


def test_all_requests_may_be_abandoned_while_waiting_for_workspace(execute, clock):
    class Gone(Leases):
        def lease(self, gear, deadline):
            cancelled.add(True)
            return super().lease(gear, deadline)

    cancelled = set()
    executor = Executor()
    callers = [Caller(is_cancelled=lambda: bool(cancelled))] * 2
    answers, counts = execute([1, 2], executor, callers=callers, workspace=Gone())
    assert [type(answer) for answer in answers] == [Cancelled, Cancelled]
    assert (executor.gears, counts.departed) == ([], 2)


@pytest.mark.parametrize(
    ("axes", "table", "requests"),
    [
        # Alone, a request of 64 has the fewest elements in the gear of 2 longer rows;
        (("batch", "tokens"), [(16, 64), (2, 256)], [(64,), (63,), (62,)]),
        # one of 10 in the gear with more, shorter rows;
        (("batch", "tokens"), [(2, 256), (4, 100)], [(256,), (10,)]),
        # and one of 5 x 5 in the lower and wider gear.
        (("tokens", "width"), [(32, 32), (8, 100)], [(20, 20), (5, 5)]),
    ],
)
def test_halves_of_an_execution_need_no_more_workspace_than_was_leased(
    execute, axes, table, requests
):
    own = [axis for axis in axes if axis != "batch"]
    gears = Gears(own, dict.fromkeys(own, 256), 16, {axes: table})
    sizes = [dict(zip(own, request, strict=True)) for request in requests]
    executor, leases = Executor(fail_if(sizes[0]["tokens"], OutOfMemory)), Leases()
    answers, _ = execute(sizes, executor, gears=gears, workspace=leases)
    assert [type(answer) for answer in answers] == [OutOfMemory, *[dict] * (len(sizes) - 1)]
    (leased,) = leases.gears
    assert len(executor.gears) > 1
    for gear in executor.gears:
        assert gear.rows <= leased.rows
        assert all(gear.extents[axis] <= leased.extents[axis] for axis in own)


def test_the_rest_of_an_execution_is_executed_at_its_own_gear(execute):
    gears = Gears(["tokens"], {"tokens": 64}, 4, {("batch",): [(4,)], ("tokens",): [(8,), (64,)]})
    executor = Executor(fail_if(60))
    execute([60, 5], executor, gears=gears)
    ran = [(gear.rows, gear.extents["tokens"]) for gear in executor.gears]
    assert ran == [(4, 64), (4, 64), (4, 8)]


def test_requests_that_no_gear_holds_are_misses_and_the_others_hits(execute):
    gears = Gears(["tokens"], {"tokens": 256}, 16, {("tokens",): [(8,), (32,)]})
    answers, counts = execute([5, 6, 200], Executor(), gears=gears)
    assert [answer["size"] for answer in answers] == [5, 6, 200]
    assert counts.gear_hits == {"tokens 8": 1}
    assert counts.gear_misses == 1


def test_the_executor_gets_the_latest_deadline_and_whether_any_caller_waits(execute, clock):
    clock.advance(10.0)
    executor = Executor()
    answers, _ = execute([5, 5], executor, callers=[Caller(deadline=11.0), Caller(deadline=12.5)])
    assert [type(answer) for answer in answers] == [dict, dict]
    assert (executor.left_s, executor.is_cancelled) == ([2.5], [False])


def test_the_executor_learns_that_all_requests_are_abandoned(execute):
    executor, asked = Executor(), []

    def is_cancelled():  # from the second call on, which is while the executor waits
        asked.append(True)
        return len(asked) > 1

    execute([5000], executor, callers=[Caller(is_cancelled=is_cancelled)])
    assert executor.is_cancelled == [True]
    assert executor.left_s == [math.inf]


@pytest.mark.parametrize("fault", [Expired, Cancelled])
def test_an_execution_that_never_got_the_device_is_answered_and_counted(execute, fault):
    answers, counts = execute([5, 5], Executor(fail_if(5, fault)))
    assert [type(answer) for answer in answers] == [fault, fault]
    assert (counts.departed, counts.isolations, counts.culprits) == (2, 0, 0)


def test_traced_requests_receive_their_executions(execute):
    reports = []
    callers = [Caller(executed=reports.append), ANONYMOUS_CALLER]
    answers, _ = execute([3, 1], Executor(), callers=callers, workspace=Leases(waited_s=0.5))
    (executed,) = reports
    assert (executed.requests, executed.rows, executed.gear.rows) == (2, 2, 2)
    assert (executed.padding, executed.memory_wait_s, executed.error) == (0.25, 0.5, "")
    assert executed.start_ns <= executed.end_ns
    assert len(answers) == 2


def test_a_failed_execution_and_its_halves_are_traced(execute):
    reports = []
    callers = [Caller(executed=reports.append)] * 2
    execute([5, 7], Executor(fail_if(7)), callers=callers)
    assert [(executed.requests, executed.error) for executed in reports] == [
        *[(2, "poison")] * 2,
        (1, ""),
        (1, "poison"),
    ]
