"""Ensembles that answer any number of times, give up, or hold steps back."""

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
    """One answer of a step, with outputs by name and value; without any if it is `empty`."""
    tensors = [array_tensor(name, [value], np.float32) for name, value in outputs]
    response = InferResponse(request.model_name, 1, request.id, tensors, final=final, empty=empty)
    request.sink.send(response)


def end(request):
    answer(request, final=True, empty=True)


def told(answers):
    """What has come so far: values and whether it was the last; None is a bare final mark."""
    said = []
    while not answers.is_empty:
        response = answers.wait()
        said.append((None if response.empty else values(response), response.final))
    return said


def test_each_answer_of_a_decoupled_step_is_one_of_the_ensemble():
    bench = Bench(STREAM, decoupled="a")
    answers = bench.submit()
    (source,) = bench.steps
    answer(source, ("Y", 1))
    answer(source, ("Y", 2))
    assert told(answers) == [({"O": [1]}, False), ({"O": [2]}, False)]
    end(source)
    assert told(answers) == [(None, True)]


def test_the_last_answer_can_carry_the_mark():
    bench = Bench(STREAM, decoupled="a")
    answers = bench.submit()
    answer(bench.steps[0], ("Y", 1), final=True)
    assert told(answers) == [({"O": [1]}, True)]


def test_a_decoupled_step_may_answer_nothing():
    bench = Bench(CHAIN, decoupled="a")
    answers = bench.submit()
    end(bench.steps[0])
    assert told(answers) == [(None, True)]
    assert len(bench.outcomes.composed_of) == 1


def test_what_follows_runs_once_for_each_answer():
    bench = Bench(CHAIN, decoupled="a")
    answers = bench.submit()
    source = bench.steps.pop()
    answer(source, ("Y", 1))
    answer(source, ("Y", 2), final=True)
    first, second = bench.steps
    answer(second, ("Y", 20), final=True)
    answer(first, ("Y", 10), final=True)
    assert told(answers) == [({"O": [20]}, False), ({"O": [10]}, True)]


def test_the_mark_comes_when_nothing_runs_any_more():
    bench = Bench(CHAIN, decoupled="a")
    answers = bench.submit()
    source = bench.steps.pop()
    answer(source, ("Y", 1))
    end(source)
    assert told(answers) == []
    answer(bench.steps[0], ("Y", 10), final=True)
    assert told(answers) == [({"O": [10]}, True)]


def test_tensors_of_different_answers_do_not_mix():
    bench = Bench(BRANCHES, decoupled="a")
    answers = bench.submit()
    source = bench.steps.pop()
    answer(source, ("Y", 1), ("Z", 2))
    answer(source, ("Y", 3), ("Z", 4), final=True)
    left, right, other_left, other_right = bench.steps
    answer(other_left, ("Y", 30), final=True)
    answer(right, ("Y", 20), final=True)
    assert told(answers) == []
    answer(left, ("Y", 10), final=True)
    answer(other_right, ("Y", 40), final=True)
    assert told(answers) == [({"O": [10], "P": [20]}, False), ({"O": [30], "P": [40]}, True)]


def test_an_answer_without_tensors_is_one_of_the_ensemble():
    bench = Bench(STREAM, decoupled="a")
    answers = bench.submit()
    answer(bench.steps[0])
    assert told(answers) == [({}, False)]


def test_an_error_is_the_last_answer():
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
def test_an_error_counts_twice_if_its_source_has_ended(has_ended, counts):
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


def test_what_a_step_took_counts_whether_it_is_told_before_the_last_answer_or_after():
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


def test_an_ensemble_around_is_told_of_it_too():
    bench, told_outside = Bench(STREAM, decoupled="a"), []
    bench.submit(timed=told_outside.append)
    (source,) = bench.steps
    end(source)
    source.timed(Timing(1, 2, 3))
    assert told_outside == [Timing(1, 2, 3)]


def test_what_a_step_took_is_nothing_to_a_request_that_failed():
    bench = Bench(STREAM, decoupled="a")
    bench.submit()
    (source,) = bench.steps
    source.sink.send(InferResponse("a", 1, "", error=invalid_arg("no")))
    source.timed(Timing(1, 2, 3))
    assert bench.outcomes.longer == []


def test_a_request_is_traced_to_its_last_answer():
    bench, trace = Bench(STREAM, decoupled="a"), NotedTrace()
    bench.submit(trace=trace)
    (source,) = bench.steps
    answer(source, ("Y", 1))
    assert trace.events == []
    end(source)
    assert trace.events == [("answered", [], None)]


def test_an_ordinary_step_may_end_apart_from_its_answer():
    bench = Bench(CHAIN)
    answers = bench.submit()
    first = bench.steps.pop()
    answer(first, ("Y", 1))
    answer(bench.steps[0], ("Y", 2), final=True)
    assert told(answers) == [({"O": [2]}, False)]
    end(first)
    assert told(answers) == [(None, True)]


def test_an_ordinary_step_that_ends_without_an_answer_is_a_deadlock():
    bench = Bench(CHAIN)
    answers = bench.submit()
    end(bench.steps[0])
    assert failure(answers) == (
        Code.INVALID_ARG,
        "in ensemble 'e', unexpected deadlock, at least one output is not set while no more "
        "ensemble steps can be made",
    )


def test_answers_keep_their_order_though_the_client_is_slow():
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


def test_a_sink_that_fails_stops_no_step():
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


def test_what_cannot_be_counted_is_answered():
    bench = Bench(STREAM, recorder=Miscounting())
    answers = bench.submit()
    bench.answer("a", ("Y", 1))
    assert values(answers.wait()) == {"O": [1]}
    bench.scheduler.close()


# --------------------------------------------------------------------------------- cancellation


def test_a_cancelled_ensemble_starts_no_further_step():
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


def test_a_request_that_is_cancelled_too_late_is_answered():
    bench, cancellation = Bench(STREAM), Cancellation()
    answers = bench.submit(cancellation=cancellation)
    cancellation.cancel()
    bench.answer("a", ("Y", 1))
    assert values(answers.wait()) == {"O": [1]}


# ---------------------------------------------------------------------------------- steps in flight


def test_a_step_is_held_back_while_its_limit_is_reached():
    bench = Bench(LIMITED, decoupled="a")
    answers = bench.submit()
    source = bench.steps.pop()
    for number in range(4):
        answer(source, ("Y", number))
    end(source)
    assert [request.inputs["X"].array().tolist() for request in bench.steps] == [[0], [1]]
    answer(bench.steps[1], ("Y", 1), final=True)
    assert [request.inputs["X"].array().tolist() for request in bench.steps] == [[0], [1], [2]]
    answer(bench.steps[0], ("Y", 1), final=True)
    for request in bench.steps[2:]:
        answer(request, ("Y", 1), final=True)
    assert [final for _, final in told(answers)] == [False, False, False, True]


def test_a_failure_lets_go_of_what_was_held_back():
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
def test_every_answer_arrives_once_and_the_last_is_marked(limit, count, marks_last, data):
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
    said = told(answers)
    assert [final for _, final in said] == [False] * (len(said) - 1) + [True]
    arrived = sorted(value["O"][0] for value, _ in said if value)
    assert arrived == list(range(count))
    assert bench.outcomes.failed == []
    assert len(bench.outcomes.composed_of) == 1
    bench.scheduler.close()


@pytest.mark.parametrize("decoupled", ["", "a", "b", "ab"])
def test_outputs_are_those_of_the_steps_whatever_is_decoupled(decoupled):
    bench = Bench(CHAIN, decoupled=decoupled)
    answers = bench.submit()
    bench.answer("a", ("Y", 3))
    bench.answer("b", ("Y", 4))
    assert values(answers.wait()) == {"O": [4]}
