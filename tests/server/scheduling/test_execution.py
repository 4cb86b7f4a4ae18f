"""The execution of one batch: responses, statistics and traces."""

import pytest
from server.support.clock import ManualClock
from server.support.instances import Answering, NotedOutcomes
from server.support.requests import Answers, a_request, array_tensor
from server.support.traces import NotedTrace

from reference_server.core.errors import Code, ServerError, internal
from reference_server.core.request import Execution, InferResponse
from reference_server.scheduling.execution import BatchExecutor
from reference_server.scheduling.work_queue import Refusal

GONE = ServerError(Code.CANCELLED, "gone")


@pytest.fixture
def outcomes():
    return NotedOutcomes()


@pytest.fixture
def clock():
    return ManualClock(now_ns=10)


@pytest.fixture
def run(outcomes, clock):
    """A function that executes requests on an instance whose `execute` is given."""
    executor = BatchExecutor("m", 1, outcomes, clock)

    def run_one(execute, *requests):
        return executor.run(Answering(execute), list(requests))

    run_one.refuse = executor.refuse
    return run_one


def asked(id="a", **fields):
    return a_request(id=id, sink=Answers(), **fields)


def response(request, *names, **fields):
    return InferResponse(
        "m", 1, request.id, [array_tensor(name, [1.0]) for name in names], **fields
    )


def left_to_the_model(requests, **fields):
    return Execution([None] * len(requests), 20, 30, **fields)


def test_requests_answered_by_the_model_are_counted(run, outcomes):
    def execute(requests):
        requests[0].sink.send(response(requests[0], final=False))
        return Execution([None, response(requests[1])], 20, 30)

    one, other = asked("a"), asked("b")
    assert run(execute, one, other) == []
    assert (outcomes.ran, outcomes.broke) == ([["a", "b"]], [])
    assert other.sink.wait().timing is not None
    assert not one.sink.wait().final
    assert one.sink.is_empty
    one.sink.send(response(one))  # at any later time
    assert one.sink.wait().final


def test_timing_callback_of_a_request_answered_by_the_model(run):
    timings = []
    with_timing = asked("a", timed=timings.append)
    run(lambda requests: Execution([None, response(requests[1])], 20, 30), with_timing, asked("b"))
    assert timings == [NotedOutcomes.TIMING]


def test_failure_reported_by_the_host_is_only_counted(run, outcomes):
    one = asked()
    assert run(lambda requests: left_to_the_model(requests, failed=True), one) == []
    assert (outcomes.ran, outcomes.broke) == ([], [["a"]])
    assert one.sink.is_empty


def test_rescheduled_requests_are_returned(run, outcomes):
    one, other = asked("a"), asked("b")
    again = run(
        lambda requests: left_to_the_model(requests, rescheduled=frozenset({1})), one, other
    )
    assert again == [other]
    assert outcomes.ran == [["a", "b"]]


# ----------------------------------------------------------------------------------------- defects


class Miscounting:
    """A recorder with a defect."""

    def executed(self, batch, execution, start_ns):
        raise ValueError("a defect")

    def failed(self, batch, start_ns):
        raise ValueError("a defect")

    def refused(self, request, reason):
        raise ValueError("a defect")


def test_recorder_defect_does_not_prevent_the_response(clock):
    executor = BatchExecutor("m", 1, Miscounting(), clock)

    def execute(requests):
        return Execution([response(request, "X") for request in requests], 20, 30)

    def fail(requests):
        raise internal("no")

    good, bad, refused = asked("a"), asked("b"), asked("c")
    assert executor.run(Answering(execute), [good]) == []
    assert executor.run(Answering(fail), [bad]) == []
    assert executor.run(Answering(lambda r: left_to_the_model(r, failed=True)), [bad]) == []
    executor.refuse(Refusal(refused, GONE))
    assert good.sink.wait().error is None
    assert bad.sink.wait().error.message == "no"
    assert refused.sink.wait().error is GONE


def test_trace_defect_does_not_prevent_the_response(run):
    class Failing:
        def answered(self, outputs, execution_ns=None):
            raise OSError("the disk is full")

    one = asked(trace=Failing())
    answers = one.sink
    run(lambda requests: Execution([response(one, "X")], 20, 30), one)
    assert answers.wait().error is None


# ------------------------------------------------------------------------------------------ traces


def test_trace_has_all_outputs_and_execution_times(run, clock):
    trace = NotedTrace()
    one = asked(trace=trace)
    run(left_to_the_model, one)
    one.sink.send(response(one, "X", final=False))
    one.sink.send(response(one, "Y", error=internal("no"), final=False))
    assert trace.events == []
    one.sink.send(response(one, "Z"))
    assert trace.events == [("answered", ["X", "Z"], (10, 20, 30))]


def test_final_response_may_precede_the_end_of_the_execution(run, clock):
    trace = NotedTrace()

    def execute(requests):
        clock.now_ns = 15
        requests[0].sink.send(response(requests[0], "X"))
        return left_to_the_model(requests)

    run(execute, asked(trace=trace))
    assert trace.events == [("answered", ["X"], (10, 10, 15))]


def test_trace_covers_all_executions_of_a_request(run, clock):
    trace = NotedTrace()
    one = asked(trace=trace)
    answers = one.sink
    run(lambda requests: left_to_the_model(requests, rescheduled=frozenset({0})), one)
    one.sink.send(response(one, "X", final=False))
    clock.now_ns = 100
    run(lambda requests: Execution([response(one, "Y")], 120, 130), one)
    assert trace.events == [("answered", ["X", "Y"], (100, 120, 130))]
    assert [answers.wait().final for _ in range(2)] == [False, True]


@pytest.mark.parametrize("has_run", [False, True])
def test_refused_request_is_traced_once(run, outcomes, has_run):
    trace = NotedTrace()
    one = asked(trace=trace)
    answers = one.sink
    if has_run:
        run(lambda requests: left_to_the_model(requests, rescheduled=frozenset({0})), one)
    run.refuse(Refusal(one, GONE))
    assert [(what, names) for what, names, _ in trace.events] == [("answered", [])]
    assert answers.wait().error is GONE
