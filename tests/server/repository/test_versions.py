"""Requests to a loaded version are checked, then scheduled."""

import pytest
from server.support.frontend import answering, served
from server.support.requests import Answers, a_request, array_tensor, raw_tensor
from server.support.traces import NotedTrace

from reference_server.core.errors import Code, ServerError
from reference_server.core.tensor import DataType

WORDS = 'input { name: "X" data_type: TYPE_STRING dims: [-1] }'


def test_valid_request_is_scheduled():
    model = served(WORDS, answer=answering())
    answers = Answers()
    request = a_request(array_tensor("X", [b"a"], object), sink=answers)
    model.infer(request)
    assert model.scheduler.requests == [request]
    assert answers.wait().error is None


def test_refused_request_has_no_effect():
    model = served(WORDS)
    answers = Answers()
    with pytest.raises(ServerError, match="expected 1 inputs but got 0"):
        model.infer(a_request(sink=answers))
    assert answers.is_empty
    assert model.scheduler.requests == []
    assert model.statistics.snapshot().fail.count == 0


def test_truncated_string_gets_an_error_response_and_is_counted():
    model = served(WORDS)
    answers = Answers()
    cut = raw_tensor("X", DataType.BYTES, [1], b"\x09\0\0\0abc")
    model.infer(a_request(cut, id="q", sink=answers))
    response = answers.wait()
    assert (response.model_name, response.model_version, response.id) == ("m", 1, "q")
    assert (response.error.code, response.error.message) == (
        Code.INVALID_ARG,
        "incomplete string data for inference input 'X', expecting string of length 9 but only 3 "
        "bytes available",
    )
    assert model.scheduler.requests == []
    assert model.statistics.snapshot().fail.count == 1


def test_trace_records_acceptance():
    trace = NotedTrace()
    model = served(WORDS, answer=answering(), version=4)
    model.infer(a_request(array_tensor("X", [b"a"], object), sink=Answers(), trace=trace))
    assert trace.events == [("accepted", "m", 4)]


def test_trace_of_a_refused_request_is_empty():
    trace = NotedTrace()
    with pytest.raises(ServerError):
        served(WORDS).infer(a_request(sink=Answers(), trace=trace))
    assert trace.events == []


def test_truncated_string_ends_the_trace():
    trace = NotedTrace()
    cut = raw_tensor("X", DataType.BYTES, [1], b"\x09\0\0\0abc")
    served(WORDS).infer(a_request(cut, sink=Answers(), trace=trace))
    assert trace.events == [("answered", [], None)]
