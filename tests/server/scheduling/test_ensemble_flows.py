"""Ensembles with decoupled steps, cancellation and limits of steps in flight."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.configs import ensemble, step
from server.support.ensembles import Bench, failure, values
from server.support.requests import PATIENCE_S, BrokenSink, array_tensor
from server.support.traces import NotedTrace

from reference_server.core.errors import Code, invalid_arg
from reference_server.core.request import Cancellation, InferResponse, Timing
from reference_server.core.telemetry import FailureReason

CHAIN = ensemble(step("a", {"X": "I"}, {"Y": "mid"}), step("b", {"X": "mid"}, {"Y": "O"}))
FORK = ensemble(step("a", {"X": "I"}, {"Y": "O"}), step("b", {"X": "I"}, {"Y": "P"}), outputs="OP")
STREAM = ensemble(step("a", {"X": "I"}, {"Y": "O"}))
BRANCHES = ensemble(
    step("a", {"X": "I"}, {"Y": "left", "Z": "right"}),
    step("b", {"X": "left"}, {"Y": "O"}),
    step("c", {"X": "right"}, {"Y": "P"}),
    outputs="OP",
)
LIMITED = CHAIN.replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 2")


def answer(request, *outputs, final=False, empty=False):
    """Send one response of a step; `outputs` are names and values."""
    tensors = [array_tensor(name, [value], np.float32) for name, value in outputs]
    response = InferResponse(request.model_name, 1, request.id, tensors, final=final, empty=empty)
    request.sink.send(response)


def end(request):
    answer(request, final=True, empty=True)


def received(answers):
    """Return (values, final) of the responses so far; values are None if it is empty."""
    said = []
    while not answers.is_empty:
        response = answers.wait()
        said.append((None if response.empty else values(response), response.final))
    return said


def test_each_response_of_a_decoupled_step_is_forwarded():
    bench = Bench(STREAM, decoupled="a")
    answers = bench.submit()
    (source,) = bench.steps
    answer(source, ("Y", 1))
    answer(source, ("Y", 2))
    assert received(answers) == [({"O": [1]}, False), ({"O": [2]}, False)]
    end(source)
    assert received(answers) == [(None, True)]


def test_decoupled_step_without_responses():
    bench = Bench(CHAIN, decoupled="a")
    answers = bench.submit()
    end(bench.steps[0])
    assert received(answers) == [(None, True)]
    assert len(bench.outcomes.composed_of) == 1


def test_tensors_of_different_responses_do_not_mix():
    bench = Bench(BRANCHES, decoupled="a")
    answers = bench.submit()
    source = bench.steps.pop()
    answer(source, ("Y", 1), ("Z", 2))
    answer(source, ("Y", 3), ("Z", 4), final=True)
    left, right, other_left, other_right = bench.steps
    answer(other_left, ("Y", 30), final=True)
    answer(right, ("Y", 20), final=True)
    assert received(answers) == []
    answer(left, ("Y", 10), final=True)
    answer(other_right, ("Y", 40), final=True)
    assert received(answers) == [({"O": [10], "P": [20]}, False), ({"O": [30], "P": [40]}, True)]


def test_error_is_the_final_response():
    bench = Bench(STREAM, decoupled="a")
    answers = bench.submit()
    (source,) = bench.steps
    answer(source, ("Y", 1))
    source.sink.send(InferResponse("a", 1, "", error=invalid_arg("no"), final=False))
    answer(source, ("Y", 2))
    end(source)
    assert values(answers.wait()) == {"O": [1]}
    assert failure(answers) == (Code.INVALID_ARG, "in ensemble 'e', no")
    assert bench.outcomes.composed_of == []


@pytest.mark.parametrize(("has_ended", "counts"), [(False, 1), (True, 2)])
def test_error_counts_twice_if_its_step_has_ended(has_ended, counts):
    bench = Bench(STREAM, decoupled="a")
    bench.submit(id="q")
    (source,) = bench.steps
    source.sink.send(InferResponse("a", 1, "", error=invalid_arg("no"), final=has_ended))
    assert bench.outcomes.failed == ["q"] * counts


def test_a_refused_step_counts_twice_if_no_other_was_sent():
    bench = Bench(FORK, refuses={"a": invalid_arg("no")})
    bench.submit(id="q")
    assert bench.outcomes.failed == ["q", "q"]


def test_a_refused_step_counts_once_if_another_was_sent():
    bench = Bench(FORK, refuses={"b": invalid_arg("no")})
    bench.submit(id="q")
    assert bench.outcomes.failed == ["q"]


def test_step_timing_counts_before_and_after_the_final_response():
    bench = Bench(CHAIN, decoupled="ab")
    bench.submit()
    first = bench.steps.pop()
    answer(first, ("Y", 1), final=True)
    first.timed(Timing(1, 2, 3))
    (second,) = bench.steps
    end(second)
    second.timed(Timing(4, 5, 6))
    assert bench.outcomes.composed_of == [(5, [Timing(1, 2, 3)])]
    assert bench.outcomes.longer == [Timing(4, 5, 6)]


def test_late_step_timing_is_passed_to_the_outer_ensemble():
    bench, outer_timings = Bench(STREAM, decoupled="a"), []
    bench.submit(timed=outer_timings.append)
    (source,) = bench.steps
    end(source)
    source.timed(Timing(1, 2, 3))
    assert outer_timings == [Timing(1, 2, 3)]


def test_step_timing_of_a_failed_request_is_ignored():
    bench = Bench(STREAM, decoupled="a")
    bench.submit()
    (source,) = bench.steps
    source.sink.send(InferResponse("a", 1, "", error=invalid_arg("no")))
    source.timed(Timing(1, 2, 3))
    assert bench.outcomes.longer == []


def test_trace_ends_with_the_final_response():
    bench, trace = Bench(STREAM, decoupled="a"), NotedTrace()
    bench.submit(trace=trace)
    (source,) = bench.steps
    answer(source, ("Y", 1))
    assert trace.events == []
    end(source)
    assert trace.events == [("answered", [], None)]


def test_final_flag_of_an_ordinary_step_may_be_separate():
    bench = Bench(CHAIN)
    answers = bench.submit()
    first = bench.steps.pop()
    answer(first, ("Y", 1))
    answer(bench.steps[0], ("Y", 2), final=True)
    assert received(answers) == [({"O": [2]}, False)]
    end(first)
    assert received(answers) == [(None, True)]


def test_ordinary_step_without_response_is_an_error():
    bench = Bench(CHAIN)
    answers = bench.submit()
    end(bench.steps[0])
    assert failure(answers) == (
        Code.INVALID_ARG,
        "in ensemble 'e', unexpected deadlock, at least one output is not set while no more "
        "ensemble steps can be made",
    )


def test_responses_stay_in_order_with_a_slow_client():
    bench = Bench(STREAM, decoupled="a")
    entered, go_on, seen = threading.Event(), threading.Event(), []

    class Slow:
        def send(self, response):
            if not seen:
                entered.set()
                assert go_on.wait(PATIENCE_S)
            seen.append(response.final)

    bench.submit(sink=Slow())
    (source,) = bench.steps
    other = threading.Thread(target=answer, args=(source, ("Y", 1)))
    other.start()
    assert entered.wait(PATIENCE_S)
    end(source)
    assert seen == []
    go_on.set()
    other.join(PATIENCE_S)
    assert seen == [False, True]


# -------------------------------------------------------------------------------------- defects


class Miscounting:
    """A recorder with a defect."""

    def composed(self, request, began_ns, steps):
        raise ValueError("a defect")


def test_failing_sink_does_not_stop_steps():
    bench = Bench(CHAIN, decoupled="ab")
    bench.submit(sink=BrokenSink())
    source = bench.steps.pop()
    answer(source, ("Y", 1))
    (first,) = bench.steps
    answer(first, ("Y", 1))
    answer(source, ("Y", 2), final=True)
    assert bench.running() == ["b", "b"]
    for step_request in bench.steps:
        end(step_request)
    bench.scheduler.close()


def test_recorder_defect_does_not_prevent_the_response():
    bench = Bench(STREAM, recorder=Miscounting())
    answers = bench.submit()
    bench.answer("a", ("Y", 1))
    assert values(answers.wait()) == {"O": [1]}
    bench.scheduler.close()


# --------------------------------------------------------------------------------- cancellation


def test_cancelled_ensemble_starts_no_more_steps():
    bench, cancellation = Bench(CHAIN), Cancellation()
    answers = bench.submit(id="q", cancellation=cancellation)
    cancellation.cancel()
    bench.answer("a", ("Y", 1))
    assert bench.running() == []
    assert failure(answers) == (
        Code.CANCELLED,
        "in ensemble 'e', Request cancelled",
    )
    assert bench.outcomes.reasons == [FailureReason.CANCELED]


def test_steps_share_the_cancellation():
    bench, cancellation = Bench(FORK), Cancellation()
    bench.submit(cancellation=cancellation)
    assert all(request.cancellation is cancellation for request in bench.steps)


# ---------------------------------------------------------------------------------- steps in flight


def test_failure_drops_waiting_steps():
    bench = Bench(LIMITED, decoupled="a")
    answers = bench.submit()
    source = bench.steps.pop()
    for number in range(3):
        answer(source, ("Y", number))
    for request in list(bench.steps):
        request.sink.send(InferResponse("b", 1, "", error=invalid_arg("no")))
    assert failure(answers) == (Code.INVALID_ARG, "in ensemble 'e', no")
    assert len(bench.steps) == 2


# ------------------------------------------------------------------------------------ any order


@pytest.mark.brute_force
@given(
    limit=st.integers(0, 3),
    count=st.integers(0, 4),
    marks_last=st.booleans(),
    data=st.data(),
)
def test_each_response_arrives_once_and_the_last_is_final(limit, count, marks_last, data):
    text = LIMITED.replace("requests: 2", f"requests: {limit}")
    bench = Bench(text, decoupled="a")
    answers = bench.submit()
    source = bench.steps.pop()
    to_send = [(number, marks_last and number == count - 1) for number in range(count)]
    ends_apart = not (marks_last and count)
    while to_send or ends_apart or bench.steps:
        moves = (["source"] if to_send or ends_apart else []) + ["step"] * bool(bench.steps)
        if data.draw(st.sampled_from(moves)) == "step":
            index = data.draw(st.integers(0, len(bench.steps) - 1))
            request = bench.steps.pop(index)
            (value,) = request.inputs["X"].array().tolist()
            answer(request, ("Y", value), final=True)
        elif to_send:
            number, final = to_send.pop(0)
            answer(source, ("Y", number), final=final)
        else:
            end(source)
            ends_apart = False
        assert not limit or len(bench.steps) <= limit
    said = received(answers)
    assert [final for _, final in said] == [False] * (len(said) - 1) + [True]
    arrived = sorted(value["O"][0] for value, _ in said if value)
    assert arrived == list(range(count))
    assert bench.outcomes.failed == []
    assert len(bench.outcomes.composed_of) == 1
    bench.scheduler.close()


@pytest.mark.parametrize("decoupled", ["", "a", "b", "ab"])
def test_outputs_do_not_depend_on_decoupled_steps(decoupled):
    bench = Bench(CHAIN, decoupled=decoupled)
    answers = bench.submit()
    bench.answer("a", ("Y", 3))
    bench.answer("b", ("Y", 4))
    assert values(answers.wait()) == {"O": [4]}


LIMIT = "ensemble_scheduling { max_inflight_requests: %d"


def limited(most, **more):
    return Bench(CHAIN.replace("ensemble_scheduling {", LIMIT % most), **more)


def answer_oldest(bench, model):
    """Answer the oldest running step of `model`."""
    request = next(each for each in bench.steps if each.model_name == model)
    bench.steps.remove(request)
    made = [tensor.renamed("Y") for tensor in request.inputs.values()]
    request.sink.send(InferResponse(model, 1, request.id, made))


def test_limit_is_shared_by_all_requests():
    bench = limited(2)
    answers = [bench.submit() for _ in range(4)]
    assert bench.running() == ["a", "a"]
    answer_oldest(bench, "a")
    assert sorted(bench.running()) == ["a", "a", "b"]
    answer_oldest(bench, "a")
    answer_oldest(bench, "a")
    # Two requests are in step `b`, and one waits for it.
    assert sorted(bench.running()) == ["a", "b", "b"]
    while bench.steps:
        answer_oldest(bench, bench.steps[0].model_name)
    assert [values(each.wait()) for each in answers] == [{"O": [1, 2]}] * 4


def test_refused_step_releases_its_place():
    bench = limited(1, refuses={"b": invalid_arg("full")})
    answers = [bench.submit() for _ in range(3)]
    for _ in answers:
        answer_oldest(bench, "a")
    assert [failure(each)[1] for each in answers] == ["in ensemble 'e', full"] * 3
    assert bench.steps == []
    assert limits_are_free(bench)


def test_cancelled_waiting_step_releases_its_place():
    bench = limited(1)
    cancellation = Cancellation()
    bench.submit()
    cancelled, last = bench.submit(cancellation=cancellation), bench.submit()
    cancellation.cancel()
    answer_oldest(bench, "a")
    assert failure(cancelled)[0].name == "CANCELLED"
    assert sorted(bench.running()) == ["a", "b"]
    while bench.steps:
        answer_oldest(bench, bench.steps[0].model_name)
    assert values(last.wait()) == {"O": [1, 2]}
    assert limits_are_free(bench)


@given(st.integers(1, 3), st.lists(st.booleans(), max_size=30))
def test_limit_is_never_exceeded(most, script):
    """In `script`, True submits a request and False answers a step; finally all are answered."""
    bench = limited(most)
    answers = []
    for submits in script:
        if submits:
            answers.append(bench.submit())
        elif bench.steps:
            answer_oldest(bench, bench.steps[-1].model_name)
        assert all(bench.running().count(model) <= most for model in "ab")
    while bench.steps:
        answer_oldest(bench, bench.steps[0].model_name)
    assert all(values(each.wait()) == {"O": [1, 2]} for each in answers)
    assert limits_are_free(bench)


def limits_are_free(bench):
    """Return whether all places are free: a new request is not delayed."""
    bench._refuses.clear()
    submitted = bench.submit()
    answer_oldest(bench, "a")
    answer_oldest(bench, "b")
    return values(submitted.wait()) == {"O": [1, 2]} and not bench.steps
