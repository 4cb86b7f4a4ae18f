"""A stream of requests: answers in the order of the requests, or as decoupled models give them."""

import gc
import weakref

import numpy as np
import pytest
from server.support.frontend import answering, served
from server.support.grpc import GrpcFrontend, WaitingScheduler, streamed
from server.support.requests import array_tensor
from tritonclient.grpc import service_pb2 as pb

from reference_server.core.errors import Code, invalid_arg, not_found

MODEL = 'input { name: "X" data_type: TYPE_FP32 dims: [-1] } '
METHOD = "ModelStreamInfer"


@pytest.fixture
def scheduler():
    return WaitingScheduler()


@pytest.fixture
def frontend(scheduler):
    waiting = served(MODEL, "slow", answer=answering())
    object.__setattr__(waiting, "scheduler", scheduler)
    speaking = served(MODEL + "model_transaction_policy { decoupled: true }", "many")
    object.__setattr__(speaking, "scheduler", scheduler)
    return GrpcFrontend(waiting, served(MODEL, "fast", answer=answering()), speaking)


def request(model="slow", request_id="", raw=bytes(4), shape=(1,), **parameters):
    x = pb.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=shape)
    message = pb.ModelInferRequest(
        model_name=model, id=request_id, inputs=[x], raw_input_contents=[raw]
    )
    for name, value in parameters.items():
        message.parameters[name].bool_param = value
    return message.SerializeToString()


def ids(call):
    return [message.infer_response.id for message in streamed(call)]


def test_an_empty_stream_ends_well(frontend):
    call, running = frontend.start(METHOD)
    running.half_close()
    assert (call.sent, call.has_ended, call.error) == ([], True, None)


def test_a_stream_ends_when_all_is_answered(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request())
    running.half_close()
    assert not call.has_ended
    scheduler.answer(0)
    frontend.turn()
    (message,) = streamed(call)
    assert message.infer_response.parameters["triton_final_response"].bool_param
    assert (call.has_ended, call.error) == (True, None)


def test_a_stream_stays_open_until_the_client_has_said_all(frontend):
    call, running = frontend.start(METHOD)
    running.receive(request("fast"))
    frontend.turn()
    assert len(call.sent) == 1
    assert not call.has_ended


def test_answers_come_in_the_order_of_the_requests(frontend, scheduler):
    call, running = frontend.start(METHOD)
    for request_id in "abc":
        running.receive(request(request_id=request_id))
    running.receive(request("fast", "d"))
    scheduler.answer(2)
    scheduler.answer(1)
    frontend.turn()
    assert ids(call) == []
    scheduler.answer(0)
    frontend.turn()
    assert ids(call) == ["a", "b", "c", "d"]


def test_refusals_keep_the_order_too(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request(request_id="a"))
    running.receive(request("nobody", "b"))
    running.receive(request("fast", "c", raw=b"x"))
    frontend.turn()
    assert ids(call) == []
    scheduler.answer(0)
    frontend.turn()
    assert ids(call) == ["a", "b", "c"]
    assert [bool(message.error_message) for message in streamed(call)] == [False, True, True]
    assert not call.has_ended


def test_a_models_error_is_a_message(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request(request_id="a"))
    running.half_close()
    scheduler.answer(0, error=invalid_arg("no"))
    frontend.turn()
    (message,) = streamed(call)
    assert (message.error_message, message.infer_response.model_name) == ("no", "slow")
    assert (call.has_ended, call.error) == (True, None)


def test_a_client_may_ask_that_a_models_error_ends_the_stream(frontend, scheduler):
    call, running = frontend.start(METHOD, triton_grpc_error="true")
    for request_id in "abc":
        running.receive(request(request_id=request_id))
    scheduler.answer(0)
    scheduler.answer(1, error=not_found("gone"))
    frontend.turn()
    assert ids(call) == ["a"]
    assert (call.has_ended, call.error.code) == (True, Code.NOT_FOUND)
    assert [waiting.cancellation.is_cancelled for waiting in scheduler.requests] == [
        False,
        False,
        True,
    ]
    scheduler.answer(2)
    frontend.turn()
    assert ids(call) == ["a"]


def test_a_refusal_never_ends_the_stream(frontend):
    call, running = frontend.start(METHOD, triton_grpc_error="true")
    running.receive(request("nobody", "a"))
    running.receive(request("fast", "b"))
    frontend.turn()
    assert ids(call) == ["a", "b"]
    assert not call.has_ended


def test_what_cannot_be_read_is_the_end(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request(request_id="a"))
    running.receive(b"\xff")
    running.receive(request("fast", "b"))
    scheduler.answer(0)
    frontend.turn()
    assert ids(call) == ["a"]
    assert (call.has_ended, call.error) == (True, None)


def test_after_the_end_nothing_is_taken(frontend):
    call, running = frontend.start(METHOD)
    running.half_close()
    running.receive(request("fast"))
    running.half_close()
    frontend.turn()
    assert (call.sent, call.error) == ([], None)


def test_cancelling_a_stream_cancels_what_is_not_answered(frontend, scheduler):
    _, running = frontend.start(METHOD)
    for request_id in "ab":
        running.receive(request(request_id=request_id))
    scheduler.answer(0)
    frontend.turn()
    running.cancel()
    assert [waiting.cancellation.is_cancelled for waiting in scheduler.requests] == [False, True]
    scheduler.answer(1)
    frontend.turn()


# -------------------------------------------------------------------------------- decoupled models

ASKS = {"triton_enable_empty_final_response": True}
ASKS_NOT = {"triton_enable_empty_final_response": False}


def told(call):
    """Each message: the request's id, the error's text, and whether it says that it is the last."""
    return [
        (
            message.infer_response.id,
            message.error_message,
            message.infer_response.parameters["triton_final_response"].bool_param,
        )
        for message in streamed(call)
    ]


def test_a_decoupled_model_answers_as_often_as_it_likes(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request("many", "a"))
    running.half_close()
    scheduler.answer(0, final=False)
    frontend.turn()
    assert told(call) == [("a", "", False)]
    scheduler.answer(0, error=invalid_arg("no"), final=False)
    scheduler.answer(0)
    frontend.turn()
    assert told(call) == [("a", "", False), ("a", "no", False), ("a", "", True)]
    assert (call.has_ended, call.error) == (True, None)


@pytest.mark.parametrize(("asks", "is_told"), [({}, False), (ASKS_NOT, False), (ASKS, True)])
def test_the_end_alone_is_told_to_those_who_ask_for_it(frontend, scheduler, asks, is_told):
    call, running = frontend.start(METHOD)
    running.receive(request("many", "a", **asks))
    running.half_close()
    scheduler.answer(0, empty=True)
    frontend.turn()
    assert told(call) == ([("a", "", True)] if is_told else [])
    assert (call.has_ended, call.error) == (True, None)


def test_the_end_names_the_model_as_the_request_did(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request("many", "a", **ASKS))
    scheduler.answer(0, empty=True)
    frontend.turn()
    (message,) = streamed(call)
    assert (message.infer_response.model_name, message.infer_response.model_version) == ("many", "")
    assert not message.infer_response.outputs


def test_decoupled_answers_wait_for_nobody(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request("slow", "a"))
    running.receive(request("many", "b"))
    running.receive(request("many", "c"))
    scheduler.answer(2, final=False)
    scheduler.answer(1)
    scheduler.answer(2)
    frontend.turn()
    assert ids(call) == ["c", "b", "c"]
    scheduler.answer(0)
    frontend.turn()
    assert ids(call) == ["c", "b", "c", "a"]


def test_a_decoupled_request_that_is_refused_waits_for_nobody_either(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request("slow", "a"))
    running.receive(request("many", "b", raw=b"x"))
    running.half_close()
    (message,) = streamed(call)
    assert (message.infer_response.id, bool(message.error_message)) == ("b", True)
    assert not call.has_ended
    scheduler.answer(0)
    frontend.turn()
    assert ids(call) == ["b", "a"]
    assert call.has_ended


def test_a_stream_waits_for_the_last_responses(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request("many", "a"))
    running.receive(request("many", "b"))
    running.half_close()
    scheduler.answer(0, empty=True)
    scheduler.answer(1, final=False)
    frontend.turn()
    assert not call.has_ended
    scheduler.answer(1, empty=True)
    frontend.turn()
    assert (ids(call), call.has_ended) == (["b"], True)


def test_a_client_may_ask_that_any_error_ends_the_stream(frontend, scheduler):
    call, running = frontend.start(METHOD, triton_grpc_error="true")
    for request_id in "ab":
        running.receive(request("many", request_id))
    scheduler.answer(0, final=False)
    scheduler.answer(0, error=not_found("gone"), final=False)
    frontend.turn()
    assert ids(call) == ["a"]
    assert (call.has_ended, call.error.code) == (True, Code.NOT_FOUND)
    assert [waiting.cancellation.is_cancelled for waiting in scheduler.requests] == [True, True]
    scheduler.answer(0)
    scheduler.answer(1)
    frontend.turn()
    assert ids(call) == ["a"]


def test_cancelling_a_stream_cancels_what_has_not_ended(frontend, scheduler):
    _, running = frontend.start(METHOD)
    for request_id in "ab":
        running.receive(request("many", request_id))
    scheduler.answer(0, final=False)
    scheduler.answer(1)
    frontend.turn()
    running.cancel()
    assert [waiting.cancellation.is_cancelled for waiting in scheduler.requests] == [True, False]
    scheduler.answer(0, empty=True)
    frontend.turn()


# -- what is kept


@pytest.mark.parametrize("method", ["ModelInfer", METHOD])
@pytest.mark.parametrize("end", ["answered", "refused", "cancelled"])
def test_a_request_that_is_over_is_not_left_to_the_collector(frontend, scheduler, method, end):
    call, running = frontend.start(method)
    raw = bytes(400 if end == "refused" else 4)
    message = np.frombuffer(request(raw=raw), np.uint8).copy()
    is_kept = weakref.ref(message)
    gc.disable()
    try:
        running.receive(message.data)
        del message
        if end == "cancelled":
            running.cancel()
        if end != "refused":
            assert is_kept() is not None
            scheduler.answer(0)
        scheduler.requests.clear()
        frontend.turn()
        assert (len(call.sent), call.has_ended) == {
            "answered": (1, method == "ModelInfer"),
            "refused": (1, False) if method == METHOD else (0, True),
            # What is said after the end is the call's to drop.
            "cancelled": (1, True) if method == "ModelInfer" else (0, True),
        }[end]
        del call.error  # has a traceback
        assert is_kept() is None
    finally:
        gc.enable()


def test_requests_to_decoupled_models_share_what_waits(frontend, scheduler):
    call, running = frontend.start(METHOD)
    for _ in range(2):
        running.receive(request("many"))
    running.receive(request("slow"))
    first, second, ordered = (each.cancellation.backlog for each in scheduler.requests)
    assert first is second is call.backlog
    assert ordered is None
    scheduler.answer(0, outputs=[array_tensor("Y", np.zeros(1000, np.uint8))], final=False)
    assert first.size > 1000
    frontend.turn()
    assert first.size == 0


def test_so_many_responses_wait_as_the_server_is_told(scheduler):
    speaking = served(MODEL + "model_transaction_policy { decoupled: true }", "many")
    object.__setattr__(speaking, "scheduler", scheduler)
    frontend = GrpcFrontend(speaking, most_responses=2)
    _, running = frontend.start(METHOD)
    running.receive(request("many"))
    (asked,) = scheduler.requests
    for is_full in (False, True):
        scheduler.answer(0, final=False)
        assert asked.cancellation.backlog.is_full is is_full
    frontend.turn()
    assert not asked.cancellation.backlog.is_full


@pytest.mark.parametrize("model", ["slow", "many"])
def test_a_stream_that_asks_for_much_is_held_until_half_is_answered(frontend, scheduler, model):
    call, running = frontend.start(METHOD)
    for count in range(1024):
        assert not call.is_held, count
        running.receive(request(model))
    assert call.is_held
    for count in range(512):
        assert call.is_held, count
        scheduler.answer(count)
        frontend.turn()
    running.receive(request(model))  # it was on its way
    scheduler.answer(512)
    scheduler.answer(513)
    frontend.turn()
    assert not call.is_held


def test_long_messages_are_few(frontend, scheduler):
    call, running = frontend.start(METHOD)
    for _ in range(4):
        assert not call.is_held
        running.receive(request(raw=bytes(1 << 24), shape=[1 << 22]))
    assert call.is_held
    for count in range(3):
        scheduler.answer(count)
        frontend.turn()
    assert not call.is_held
