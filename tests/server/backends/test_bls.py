"""Requests of a model's own (BLS): what goes over, what comes back, and when."""

import queue
import threading

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from server.backends.kit import answer, executing, request
from server.support.requests import PATIENCE_S, array_tensor

from reference_server.backends.python_host.api.bls import BlsResponses, ResponseIterator
from reference_server.backends.python_host.api.server_access import NO_CALLS, ServerAccess
from reference_server.core.errors import not_found
from reference_server.core.request import Cancellation, InferResponse


def response(*values, final=False, **fields):
    outputs = [array_tensor("OUT", values)] if values else []
    return InferResponse("m", 1, "", outputs, final=final, **fields)


def iterator(*given):
    responses, cancellation = BlsResponses(), Cancellation()
    for each in given:
        responses.send(each)
    return ResponseIterator._of(responses, cancellation), responses, cancellation


def numbers(answers):
    return [[t.as_numpy().tolist() for t in each.output_tensors()] for each in answers]


def test_a_tensor_goes_over_by_reference_and_cannot_be_written_to():
    array = np.arange(4.0)
    bls_request = pb_utils.InferenceRequest(
        inputs=[pb_utils.Tensor("IN", array)], requested_output_names=[], model_name="m"
    )
    bls = bls_request._bls
    sent = bls._tensors(bls_request._request)["IN"].array()
    assert np.shares_memory(sent, array)
    assert not sent.flags.writeable
    assert array.flags.writeable


def test_responses_are_given_as_they_come():
    answers, responses, _ = iterator(response(1))
    assert numbers([next(answers)]) == [[[1]]]
    bringer = threading.Thread(target=responses.send, args=(response(2, final=True),))
    bringer.start()
    assert numbers(answers) == [[[2]]]
    bringer.join()
    assert numbers(answers) == [[[1]], [[2]]]


def test_an_error_that_is_not_the_first_response_is_given_too():
    answers, _, _ = iterator(response(1), response(final=True, error=not_found("gone")))
    first, last = answers
    assert not first.has_error()
    assert (last.error().message(), last.error().code()) == ("gone", pb_utils.TritonError.NOT_FOUND)


def test_who_wants_one_response_gets_the_error_that_follows_it():
    _, responses, _ = iterator(response(1), response(final=True, error=not_found("gone")))
    asking = pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m")
    only = asking._bls._result(
        ServerAccess(NO_CALLS, "m_0"), asking._request, responses, None, decoupled=False
    )
    assert only.error().message() == "gone"


def test_cancelling_reaches_the_request_until_its_last_response_is_there():
    answers, _, cancellation = iterator(response(1, final=True))
    answers.cancel()
    assert not cancellation.is_cancelled
    answers, _, cancellation = iterator(response(1))
    answers.cancel()
    assert cancellation.is_cancelled


def test_an_iterator_that_is_given_up_takes_what_still_comes():
    answers, responses, cancellation = iterator(response(1))
    next(answers)
    del answers
    responses.send(response(final=True))
    assert not cancellation.is_cancelled


def test_parameters_come_with_a_response():
    (only,), _, _ = iterator(response(1, final=True, parameters=[("a", 1), ("b", "é")]))
    assert only.parameters() == '{"a": 1, "b": "\\u00e9"}'


@pytest.mark.parametrize("parameters", [{"a": 1.5}, {1: 2}, [1]])
def test_parameters_of_other_types_are_refused(parameters):
    with pytest.raises(pb_utils.TritonModelException, match=r"^Expect "):
        pb_utils.InferenceResponse([], parameters=parameters)


def test_parameters_of_a_response_go_to_whoever_asked(open_model):
    opened = open_model(
        executing("return [pb_utils.InferenceResponse([], parameters={'a': 1, 'b': True})]")
    )
    assert list(answer(opened, request()).parameters) == [("a", 1), ("b", True)]


def test_all_who_wait_for_responses_get_them_whenever_they_begin_to():
    responses, got = BlsResponses(), queue.SimpleQueue()
    waiting = [
        threading.Thread(target=lambda index: got.put((index, responses.get(index))), args=(index,))
        for index in (0, 0, 1, 1, 2)
    ]
    for thread in waiting:
        thread.start()
    first, last = InferResponse("m", 1, "a", final=False), InferResponse("m", 1, "b")
    responses.send(first)
    assert responses.get(0) is first
    responses.send(last)
    for thread in waiting:
        thread.join(PATIENCE_S)
    answers = sorted((got.get(timeout=PATIENCE_S) for _ in waiting), key=lambda each: each[0])
    assert answers == [(0, first), (0, first), (1, last), (1, last), (2, None)]
