"""Errors: their codes and texts, and exceptions that are logged and suppressed."""

from server.support.requests import Answers, BrokenSink, a_request
from server.support.traces import NotedTrace

from reference_server.core import errors
from reference_server.core.errors import Contained, internal
from reference_server.core.request import InferResponse, answer, deliver


def test_very_long_texts_are_shortened():
    error = errors.internal("x" * 10_000_000)
    assert len(str(error)) < 300_000
    assert error.message.endswith("... (10000000 characters)")


RESPONSE = InferResponse("m", 3, "q")


class Untraceable:
    """A trace that cannot be written."""

    def answered(self, outputs):
        raise OSError("the disk is full")


def test_an_exception_is_logged_and_the_next_block_runs(caplog):
    contained = Contained("nothing came of it")
    for _ in range(2):
        with contained:
            raise ValueError("a defect")
    assert [record.message for record in caplog.records] == ["nothing came of it"] * 2
    assert "ValueError: a defect" in caplog.text


def test_a_response_that_its_sink_refuses_is_logged(caplog):
    deliver(BrokenSink(), RESPONSE)
    assert "a response of m version 3 to 'q' was lost" in caplog.text


def test_the_only_response_ends_the_trace():
    trace, answers = NotedTrace(), Answers()
    answer(a_request(sink=answers, trace=trace), InferResponse("m", 3, "q", error=internal("no")))
    assert trace.events == [("answered", [], None)]
    assert answers.wait().error is not None


def test_a_trace_that_cannot_be_written_does_not_affect_the_response(caplog):
    answers = Answers()
    answer(a_request(sink=answers, trace=Untraceable()), RESPONSE)
    assert answers.wait() is RESPONSE
    assert "the disk is full" in caplog.text
