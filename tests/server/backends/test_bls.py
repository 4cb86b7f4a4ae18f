"""Tests of BLS requests: tensors, responses, iterators and cancellation."""

import queue
import threading

import numpy as np
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


def test_a_tensor_is_passed_by_reference_and_read_only():
    array = np.arange(4.0)
    bls_request = pb_utils.InferenceRequest(
        inputs=[pb_utils.Tensor("IN", array)], requested_output_names=[], model_name="m"
    )
    bls = bls_request._bls
    sent = bls._tensors(bls_request._request)["IN"].array()
    assert np.shares_memory(sent, array)
    assert not sent.flags.writeable
    assert array.flags.writeable


def test_responses_are_iterated_in_order_of_arrival():
    answers, responses, _ = iterator(response(1))
    assert numbers([next(answers)]) == [[[1]]]
    bringer = threading.Thread(target=responses.send, args=(response(2, final=True),))
    bringer.start()
    assert numbers(answers) == [[[2]]]
    bringer.join()
    assert numbers(answers) == [[[1]], [[2]]]


def test_a_later_error_is_returned_by_the_iterator():
    answers, _, _ = iterator(response(1), response(final=True, error=not_found("gone")))
    first, last = answers
    assert not first.has_error()
    assert (last.error().message(), last.error().code()) == ("gone", pb_utils.TritonError.NOT_FOUND)


def test_exec_returns_the_error_that_follows_a_response():
    _, responses, _ = iterator(response(1), response(final=True, error=not_found("gone")))
    asking = pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m")
    only = asking._bls._result(
        ServerAccess(NO_CALLS, "m_0"), asking._request, responses, None, decoupled=False
    )
    assert only.error().message() == "gone"


def test_cancel_has_effect_until_the_last_response():
    answers, _, cancellation = iterator(response(1, final=True))
    answers.cancel()
    assert not cancellation.is_cancelled
    answers, _, cancellation = iterator(response(1))
    answers.cancel()
    assert cancellation.is_cancelled


def test_a_response_has_parameters():
    (only,), _, _ = iterator(response(1, final=True, parameters=[("a", 1), ("b", "é")]))
    assert only.parameters() == '{"a": 1, "b": "\\u00e9"}'


def test_an_error_has_no_text_of_parameters():
    _, last = iterator(response(1), response(final=True, error=not_found("gone")))[0]
    assert last.parameters() == ""


def test_response_parameters_reach_the_caller(open_model):
    opened = open_model(
        executing("return [pb_utils.InferenceResponse([], parameters={'a': 1, 'b': True})]")
    )
    assert list(answer(opened, request()).parameters) == [("a", 1), ("b", True)]


def test_all_waiting_threads_receive_the_responses():
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
