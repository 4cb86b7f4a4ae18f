"""Checks of requests to a loaded version, and the thread that polls repositories."""

import threading

import pytest
from server.support.frontend import answering, served
from server.support.requests import PATIENCE_S, Answers, a_request, array_tensor, raw_tensor
from server.support.traces import NotedTrace

from reference_server.core.errors import Code, ServerError, internal
from reference_server.core.tensor import DataType
from reference_server.repository.polling import RepositoryWatch

WORDS = 'input { name: "X" data_type: TYPE_STRING dims: [-1] }'


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


class FakeRepository:
    """A repository whose first call raises ServerError and whose second call has a defect."""

    def __init__(self):
        self.calls = 0
        self.enough = threading.Event()

    def load_all(self):
        self.calls += 1
        if self.calls == 1:
            raise internal("gone")
        if self.calls == 2:
            raise KeyError("defect")
        self.enough.set()


def test_polling_continues_after_errors(caplog):
    repository = FakeRepository()
    watch = RepositoryWatch(repository.load_all, 1e-9)
    watch.start()
    assert repository.enough.wait(PATIENCE_S)
    watch.stop()
    assert "failed to poll the repository: Internal: gone" in caplog.text
    calls = repository.calls
    watch.stop()
    assert repository.calls == calls
