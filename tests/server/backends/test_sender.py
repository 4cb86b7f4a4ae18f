"""Tests of InferenceResponseSender: flags, order, threads and dropped senders."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server.backends.kit import DROPPED, FAILED, outputs, request, senders
from server.support.requests import PATIENCE_S, Answers, BrokenSink
from triton_python_backend_utils import InferenceRequest, InferenceResponse, Tensor, TritonError

from reference_server.backends.python_host.api.native import TritonModelException
from reference_server.backends.python_host.api.response import InferenceResponseSender
from reference_server.core.errors import Code, internal

FINAL = 1
CLOSED = "Unable to send response. Response sender has been closed."
UNSUPPORTED = "Unable to send response. Unsupported flag provided."
NEITHER = "Inference Response object must be provided when the response flags is set to zero."
SECOND = "Unable to send response. Non-decoupled model cannot send more than one response."
NO_FIRST = (
    "Unable to send response. Non-decoupled model cannot send complete final before sending a "
    "response."
)


@pytest.fixture
def opened():
    """A function that returns a request's sender and the request; all senders end with the test."""
    crews = []

    def open_one(*wanted, is_decoupled=True, id="i"):
        crew = senders(is_decoupled=is_decoupled)
        crews.append(crew)
        asked = request(*wanted, id=id)
        asked.sink = Answers()
        seen = InferenceRequest._received(asked, crew)
        return seen.get_response_sender(), asked

    yield open_one
    for crew in crews:
        # `close` waits for senders that are open, and the traceback of a failed test keeps its own.
        closing = threading.Thread(target=crew.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive(), f"{crew}: a sender was not closed within {PATIENCE_S} s"


def out(*numbers):
    return InferenceResponse([Tensor("OUT", np.float32(numbers))])


def arrived(asked):
    """Return the numbers of the next response, and whether it is the last."""
    response = asked.sink.wait()
    assert (response.model_name, response.model_version, response.id) == ("m", 1, asked.id)
    return outputs(response).get("OUT"), response.final


def test_responses_arrive_in_order_the_last_one_marked(opened):
    sender, asked = opened()
    sender.send(out(1))
    sender.send(response=out(2), flags=0)
    sender.send(out(3), FINAL)
    assert [arrived(asked) for _ in range(3)] == [([1], False), ([2], False), ([3], True)]
    assert asked.sink.is_empty


def test_the_flag_alone_is_the_end(opened):
    sender, asked = opened()
    sender.send(flags=FINAL)
    response = asked.sink.wait()
    assert (response.empty, response.final, response.outputs) == (True, True, ())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), NEITHER),
        ((None, 0), NEITHER),
        ((None, 2), UNSUPPORTED),
        ((out(1), 2), UNSUPPORTED),
        ((out(1), 3), UNSUPPORTED),
    ],
)
def test_invalid_flags_and_empty_sends_are_refused(opened, arguments, text):
    sender, asked = opened()
    with pytest.raises(TritonModelException, match=text):
        sender.send(*arguments)
    assert asked.sink.is_empty
    sender.send(flags=FINAL)  # nothing has ended


@pytest.mark.parametrize("arguments", [(out(1),), (out(1), FINAL), (None, FINAL)])
def test_a_closed_sender_refuses_responses(opened, arguments):
    sender, asked = opened()
    sender.send(out(1), FINAL)
    with pytest.raises(TritonModelException, match=CLOSED):
        sender.send(*arguments)
    asked.sink.wait()
    assert asked.sink.is_empty


def test_a_request_has_one_sender():
    crew = senders()
    seen = InferenceRequest._received(request(), crew)
    sender = seen.get_response_sender()
    assert seen.get_response_sender() is sender
    assert type(sender).__module__ == "c_python_backend_utils"
    with pytest.raises(TypeError, match="cannot create"):
        InferenceResponseSender()
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(sender)
    sender.send(out(1), FINAL)
    crew.close()


@pytest.mark.brute_force
def test_concurrent_threads_get_the_same_sender():
    class SlowCrew:
        """Opens when both threads have found no sender, or when one of them waits."""

        def __init__(self):
            self.both = threading.Barrier(2)
            self.opened = 0

        def open(self, asked):
            self.opened += 1
            with suppress(threading.BrokenBarrierError):
                self.both.wait(0.2)
            return crew.open(asked)

    crew = senders()
    slow = SlowCrew()
    seen = InferenceRequest._received(request(), crew)
    seen._senders = slow
    with ThreadPoolExecutor(2) as threads:
        one, other = (threads.submit(seen.get_response_sender) for _ in range(2))
        assert one.result(PATIENCE_S) is other.result(PATIENCE_S)
    assert slow.opened == 1
    one.result().send(out(1), FINAL)
    crew.close()


def test_only_requested_outputs_are_sent_and_kept(opened):
    sender, asked = opened("TEXT")
    answer = InferenceResponse([Tensor(n, np.float32([1])) for n in ("OUT", "TEXT", "NOBODYS")])
    sender.send(answer, FINAL)
    assert list(outputs(asked.sink.wait())) == ["TEXT"]
    assert [tensor.name() for tensor in answer.output_tensors()] == ["TEXT"]


def test_a_cancelled_request_can_be_answered(opened):
    sender, asked = opened()
    assert sender.is_cancelled() is False
    asked.cancellation.cancel()
    assert sender.is_cancelled() is True
    sender.send(out(1), FINAL)
    assert arrived(asked) == ([1], True)


def test_send_waits_for_a_full_backlog(opened):
    sender, asked = opened()
    had_come = []

    class Full:
        def wait(self):
            had_come.append(not asked.sink.is_empty)

    asked.cancellation.backlog = Full()
    sender.send(out(1))
    sender.send(out(2), FINAL)
    assert had_come == [False, True]
    assert arrived(asked) == ([1], False)


def test_a_failing_sink_does_not_raise_in_the_model(opened, caplog):
    crew = senders(is_decoupled=True)
    asked = request()
    asked.sink = BrokenSink()
    sender = crew.open(asked)
    sender.send(out(1))
    sender.send(flags=FINAL)
    crew.close()
    assert [record.getMessage() for record in caplog.records] == [
        "a response of m version 1 to '' was lost"
    ] * 2


# ------------------------------------------------------------------- models that are not decoupled


def test_an_ordinary_response_waits_for_the_end(opened):
    sender, asked = opened(is_decoupled=False)
    sender.send(out(1))
    assert asked.sink.is_empty
    sender.send(flags=FINAL)
    assert arrived(asked) == ([1], True)


@pytest.mark.parametrize("flags", [0, FINAL])
@pytest.mark.parametrize("is_ended", [False, True])
def test_an_ordinary_model_has_one_response(opened, flags, is_ended):
    sender, asked = opened(is_decoupled=False)
    sender.send(out(1), FINAL if is_ended else 0)
    with pytest.raises(TritonModelException, match=SECOND):
        sender.send(out(2), flags)
    if not is_ended:
        sender.send(flags=FINAL)
    assert arrived(asked) == ([1], True)


def test_an_ordinary_model_has_at_least_one_response(opened):
    sender, _ = opened(is_decoupled=False)
    with pytest.raises(TritonModelException, match=NO_FIRST):
        sender.send(flags=FINAL)
    sender.send(out(1), FINAL)
    with pytest.raises(TritonModelException, match=CLOSED):
        sender.send(flags=FINAL)


# ------------------------------------------------------------------------------------- the threads


def test_many_threads_send_through_one_sender(opened):
    sender, asked = opened()
    ready = threading.Barrier(4)

    def send(first):
        ready.wait(PATIENCE_S)
        for number in range(first, first + 100):
            sender.send(out(number))

    threads = [threading.Thread(target=send, args=(first,)) for first in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sender.send(flags=FINAL)
    numbers = [arrived(asked)[0][0] for _ in range(400)]
    assert sorted(numbers) == list(range(400))
    for first in (0, 100, 200, 300):
        own = [number for number in numbers if first <= number < first + 100]
        assert own == sorted(own)
    assert asked.sink.wait().empty


def test_closing_waits_for_the_last_response():
    crew = senders(is_decoupled=True)
    asked = request()
    asked.sink = Answers()
    sender = crew.open(asked)
    closed = threading.Event()
    closing = threading.Thread(target=lambda: (crew.close(), closed.set()))
    closing.start()
    sender.send(out(1))
    assert not closed.is_set()
    sender.send(flags=FINAL)
    closing.join(PATIENCE_S)
    assert closed.is_set()


# ----------------------------------------------------------------------------- those who are lost


def test_a_dropped_sender_fails_its_request(opened, caplog):
    sender, asked = opened()
    sender.send(out(1))
    del sender
    assert arrived(asked) == ([1], False)
    response = asked.sink.wait()
    assert (response.error.code, response.error.message) == (Code.INTERNAL, FAILED + DROPPED)
    assert response.final
    assert FAILED + DROPPED in caplog.messages


def test_a_response_without_the_final_flag_is_not_delivered(opened):
    sender, asked = opened(is_decoupled=False)
    sender.send(out(1))
    del sender
    assert asked.sink.wait().error.message == FAILED + DROPPED
    assert asked.sink.is_empty


def test_closing_finds_senders_in_reference_cycles():
    crew = senders()
    asked = request()
    asked.sink = Answers()
    cycle = [crew.open(asked)]
    cycle.append(cycle)
    del cycle
    crew.close()
    assert asked.sink.wait().error.message == FAILED + DROPPED


# ---------------------------------------------------------------------------- random operations

ACTIONS = {
    "a response": lambda sender: sender.send(out(1)),
    "the last": lambda sender: sender.send(out(2), FINAL),
    "an error": lambda sender: sender.send(InferenceResponse(error=TritonError("no"))),
    "the flag": lambda sender: sender.send(flags=FINAL),
    "nothing": lambda sender: sender.send(),
    "fails": lambda sender: sender._fail(internal("broken")),
}


@pytest.mark.brute_force
@settings(max_examples=25)
@given(done=st.lists(st.sampled_from(sorted(ACTIONS)), max_size=6), is_decoupled=st.booleans())
def test_each_request_has_one_final_response_at_the_end(done, is_decoupled):
    crew = senders(is_decoupled=is_decoupled)
    asked = request()
    asked.sink = Answers()
    sender = crew.open(asked)
    for action in done:
        with suppress(TritonModelException):
            ACTIONS[action](sender)
    del sender
    crew.close()
    seen = []
    while not asked.sink.is_empty:
        seen.append(asked.sink.wait().final)
    assert seen == [False] * (len(seen) - 1) + [True]
    assert is_decoupled or len(seen) == 1
