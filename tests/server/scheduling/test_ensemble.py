"""Ensembles: requests of steps, responses, failures, closing and tracing."""

import threading

import numpy as np
import pytest
from server.support.configs import ensemble, step
from server.support.ensembles import Bench, NotedCompositions, failure, values
from server.support.requests import PATIENCE_S, array_tensor
from server.support.traces import NotedTrace

from reference_server.core.errors import Code, ServerError, invalid_arg, not_found
from reference_server.core.request import InferResponse, SequenceFlag, Timing

CHAIN = ensemble(step("a", {"X": "I"}, {"Y": "mid"}), step("b", {"X": "mid"}, {"Y": "O"}))
FORK = ensemble(
    step("a", {"X": "I"}, {"Y": "O"}), step("b", {"X": "I"}, {"Y": "P"}, version=3), outputs="OP"
)
JOIN = ensemble(
    step("a", {"X": "I"}, {"Y": "left"}),
    step("b", {"X": "I"}, {"Y": "right"}),
    step("c", {"L": "left", "R": "right"}, {"Y": "O"}),
)
SEQUENCE_VALUES = [("sequence_id", 0), ("sequence_start", False), ("sequence_end", False)]


# ----------------------------------------------------------------------------------------- order


def test_independent_steps_run_in_parallel():
    bench = Bench(JOIN)
    bench.submit()
    assert (bench.running(), bench.scheduler.pending) == (["a", "b"], 0)
    assert repr(bench.scheduler).endswith(": 1 running)")
    bench.answer("b", ("Y", 1))
    assert bench.running() == ["a"]
    bench.answer("a", ("Y", 2))
    assert bench.running() == ["c"]


def test_only_steps_of_requested_outputs_run():
    bench = Bench(FORK)
    answers = bench.submit(requested_outputs=("P",))
    assert bench.running() == ["b"]
    bench.answer("b", ("Y", 2))
    assert values(answers.wait()) == {"P": [2]}


def test_outputs_are_in_the_order_of_tritons_hash_table():
    bench = Bench(FORK)
    answers = bench.submit(requested_outputs=("P", "O"))
    bench.answer("b", ("Y", 2))
    bench.answer("a", ("Y", 1))
    assert list(values(answers.wait())) == ["P", "O"]


def test_input_can_be_an_output():
    bench = Bench(ensemble(step("a", {"X": "I"}, {"Y": "O"}), outputs="IO"))
    answers = bench.submit(requested_outputs=("I",))
    assert bench.running() == []
    assert values(answers.wait()) == {"I": [1, 2]}


# ------------------------------------------------------------------------------ requests to steps


def test_step_request_uses_the_tensor_names_of_the_model():
    bench = Bench(JOIN)
    bench.submit()
    bench.answer("a", ("Y", 1))
    bench.answer("b", ("Y", 2))
    (request,) = bench.steps
    assert {name: tensor.array().tolist() for name, tensor in request.inputs.items()} == {
        "L": [1],
        "R": [2],
    }
    assert all(name == tensor.name for name, tensor in request.inputs.items())
    assert request.requested_outputs == ("Y",)


def test_request_fields_are_passed_to_steps():
    said = {
        "id": "q",
        "parameters": {"k": 1},
        "correlation_id": "seq",
        "flags": SequenceFlag.END,
        "priority": 2,
        "timeout_us": 500,
    }
    bench = Bench(CHAIN)
    bench.submit(**said)
    first = bench.answer("a", ("Y", 3))
    (second,) = bench.steps
    for request in (first, second):
        assert {name: getattr(request, name) for name in said} == said


def test_tensors_are_passed_by_reference():
    bench = Bench(CHAIN)
    bench.submit()
    (request,) = bench.steps
    tensor = array_tensor("Y", [3], np.float32)
    request.sink.send(InferResponse("a", 1, "", [tensor]))
    handed_over = bench.steps[-1].inputs["X"].array()
    assert np.shares_memory(handed_over, tensor.array())
    assert handed_over.flags.writeable


def test_shared_tensors_are_read_only():
    bench = Bench(FORK)
    bench.submit()
    for request in bench.steps:
        assert not request.inputs["X"].array().flags.writeable


def test_unmapped_tensors_are_dropped():
    bench = Bench(CHAIN)
    answers = bench.submit()
    bench.answer("a", ("Y", 3), ("more", 5))
    assert list(bench.steps[0].inputs) == ["X"]
    bench.answer("b", ("Y", 4), ("more", 5))
    assert values(answers.wait()) == {"O": [4]}


def test_step_starts_without_missing_inputs():
    bench = Bench(JOIN)
    bench.submit()
    bench.answer("a")
    bench.answer("b", ("Y", 2))
    assert list(bench.steps[0].inputs) == ["R"]


# ------------------------------------------------------------------------------------ the answer


RESHAPED = CHAIN.replace(
    'name: "O" data_type: TYPE_FP32 dims: [-1]',
    'name: "O" data_type: TYPE_FP32 dims: [-1] reshape { shape: [1, -1, 1] }',
)


def reshaped_answer(made):
    """Return the response of an ensemble whose model produced `made`, and the recorder."""
    bench = Bench(RESHAPED)
    answers = bench.submit()
    bench.answer("a", ("Y", [0]))
    bench.answer("b", ("Y", made))
    return answers.wait(), bench.outcomes


@pytest.mark.parametrize(("made", "shown"), [([[1], [2], [3]], (3,)), ([1, 2, 3], (1, 3))])
def test_outputs_are_reshaped_for_the_client(made, shown):
    answer, _ = reshaped_answer(made)
    assert [tensor.shape for tensor in answer.outputs] == [shown]


def test_output_that_cannot_be_reshaped_is_an_error():
    answer, outcomes = reshaped_answer([[1, 2], [3, 4]])
    assert answer.error is not None
    assert answer.error.code is Code.INTERNAL
    assert answer.error.message == "output tensor shape does not match size of output for 'O'"
    assert (len(outcomes.composed_of), outcomes.failed) == (1, [])


@pytest.mark.parametrize(("requested", "times"), [((), 2), (("O",), 1)])
def test_sequence_parameters_are_repeated_for_each_output(requested, times):
    bench = Bench(FORK)
    answers = bench.submit(requested_outputs=requested)
    for model in bench.running():
        bench.answer(model, ("Y", 1))
    assert list(answers.wait().parameters) == SEQUENCE_VALUES * times


def test_step_response_can_change_the_sequence_place():
    bench = Bench(
        ensemble(
            step("a", {"X": "I"}, {"Y": "mid"}),
            step("b", {"X": "mid"}, {"Y": "O"}),
            step("c", {"X": "I"}, {"Y": "P"}),
            outputs="OP",
        )
    )
    answers = bench.submit(correlation_id=7, flags=SequenceFlag.START)
    given = (("sequence_id", "other"), ("sequence_start", False), ("sequence_end", True), ("k", 1))
    bench.answer("a", ("Y", 1), parameters=given)
    follows = bench.answer("b", ("Y", 2))
    beside = bench.answer("c", ("Y", 3))
    assert (follows.correlation_id, follows.flags) == ("other", SequenceFlag.END)
    assert (beside.correlation_id, beside.flags) == (7, SequenceFlag.START)
    own = [("sequence_id", 7), ("sequence_start", True), ("sequence_end", False)]
    put = [("sequence_id", "other"), ("sequence_start", False), ("sequence_end", True)]
    assert list(answers.wait().parameters) == [*own, *put]  # of P, then of O


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (
            ("sequence_id", True),
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or "
            "TRITONSERVER_PARAMETER_STRING",
        ),
        (
            ("sequence_start", 1),
            "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL",
        ),
        (
            ("sequence_end", "x"),
            "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL",
        ),
    ],
)
def test_sequence_parameters_of_wrong_type_fail(given, error):
    bench = Bench(CHAIN)
    answers = bench.submit()
    bench.answer("a", ("Y", 1), parameters=(given,))
    assert failure(answers) == (Code.INVALID_ARG, f"in ensemble 'e', {error}")
    assert bench.running() == []


def test_no_sequence_parameters_for_an_empty_output():
    bench = Bench(FORK)
    answers = bench.submit()
    for request in tuple(bench.steps):
        elements = [] if request.model_name == "a" else [1]
        output = array_tensor("Y", elements, np.float32)
        request.sink.send(InferResponse(request.model_name, 1, "", [output]))
    response = answers.wait()
    assert list(values(response)) == ["P", "O"]
    assert list(response.parameters) == SEQUENCE_VALUES


def test_missing_output_is_left_out():
    bench = Bench(CHAIN)
    answers = bench.submit()
    bench.answer("a", ("Y", 3))
    bench.answer("b")
    response = answers.wait()
    assert values(response) == {}
    assert list(response.parameters) == []


def test_step_timings_are_recorded():
    bench = Bench(CHAIN)
    answers = bench.submit()
    one, two = Timing(2, 3, 4), Timing(6, 7, 8)
    bench.clock.advance(ns=100)
    bench.answer("a", ("Y", 3), timing=one)
    bench.answer("b", ("Y", 4), timing=two)
    assert answers.wait().timing == NotedCompositions.TIMING
    assert bench.outcomes.composed_of == [(5, [one, two])]


# --------------------------------------------------------------------------------------- failures


def test_failing_step_fails_the_ensemble_with_its_message():
    bench = Bench(CHAIN)
    answers = bench.submit(id="q")
    bench.answer("a", error=not_found("nothing here"))
    assert failure(answers) == (Code.NOT_FOUND, "in ensemble 'e', nothing here")
    assert bench.running() == []
    # Twice: Triton counts the failure twice if no other step is in flight.
    assert bench.outcomes.failed == ["q", "q"]


def test_first_of_two_failures_is_reported():
    bench = Bench(FORK)
    answers = bench.submit()
    bench.answer("b", error=invalid_arg("first"))
    bench.answer("a", error=invalid_arg("second"))
    assert failure(answers) == (Code.INVALID_ARG, "in ensemble 'e', first")
    assert bench.outcomes.failed == [""]


def test_success_after_a_failure_has_no_effect():
    bench = Bench(JOIN)
    answers = bench.submit()
    bench.answer("a", error=invalid_arg("first"))
    bench.answer("b", ("Y", 2))
    assert failure(answers) == (Code.INVALID_ARG, "in ensemble 'e', first")
    assert bench.running() == []
    assert bench.outcomes.composed_of == []


def test_steps_after_a_refused_one_are_not_sent():
    bench = Bench(FORK, refuses={"a": invalid_arg("no")})
    answers = bench.submit()
    assert bench.running() == []
    assert failure(answers) == (Code.INVALID_ARG, "in ensemble 'e', no")


@pytest.mark.parametrize("fails", [True, False])
def test_steps_that_end_simultaneously_give_one_response(fails):
    bench = Bench(FORK)
    answers = bench.submit()
    together = threading.Barrier(2)
    error = invalid_arg("no") if fails else None

    def end(request):
        response = InferResponse(request.model_name, 1, "", error=error)
        together.wait(PATIENCE_S)
        request.sink.send(response)

    threads = [threading.Thread(target=end, args=(request,)) for request in bench.steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (answers.wait().error is not None) is fails
    assert answers.is_empty


# ------------------------------------------------------------------------------------------ close


def test_close_waits_for_requests_in_flight():
    bench = Bench(CHAIN)
    answers = bench.submit()

    def answer_both():
        bench.answer("a", ("Y", 3))
        bench.answer("b", ("Y", 4))

    other = threading.Thread(target=answer_both)
    other.start()
    bench.scheduler.close()
    assert not answers.is_empty
    other.join(PATIENCE_S)


def test_close_does_not_wait_for_steps_of_a_failed_request():
    bench = Bench(FORK)
    bench.submit()
    bench.answer("a", error=invalid_arg("no"))
    bench.scheduler.close()
    assert bench.running() == ["b"]


def test_closed_ensemble_refuses_requests():
    bench = Bench(CHAIN)
    bench.scheduler.close()
    with pytest.raises(ServerError) as caught:
        bench.submit(id="q")
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == (
        "[request id: q] Server is stopping, scheduler for model has stopped accepting new "
        "inference requests"
    )


# --------------------------------------------------------------------------------------- tracing


def test_steps_have_child_traces():
    bench = Bench(CHAIN)
    trace = NotedTrace()
    bench.submit(trace=trace)
    first = bench.answer("a", ("Y", 3))
    second = bench.answer("b", ("Y", 4))
    assert [first.trace, second.trace] == trace.children
    assert trace.events == [("answered", ["O"], None)]


def test_trace_of_a_refused_step_is_closed():
    bench = Bench(CHAIN, refuses={"a": not_found("gone")})
    trace = NotedTrace()
    bench.submit(trace=trace)
    (child,) = trace.children
    assert child.events == ["closed"]
    assert trace.events == [("answered", [], None)]
