"""A stream of requests: responses in the requests' order, or as decoupled models send them."""

import gc
import weakref

import numpy as np
import pytest
from server.support.frontend import answering, served
from server.support.grpc import GrpcFrontend, WaitingScheduler, streamed
from server.support.requests import array_tensor
from tritonclient.grpc import service_pb2 as pb

from reference_server.core.errors import Code, not_found

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


def test_responses_are_sent_in_the_order_of_the_requests(frontend, scheduler):
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


def test_rejections_keep_the_order(frontend, scheduler):
    call, running = frontend.start(METHOD)
    running.receive(request(request_id="a"))
    running.receive(request("absent", "b"))
    running.receive(request("fast", "c", raw=b"x"))
    frontend.turn()
    assert ids(call) == []
    scheduler.answer(0)
    frontend.turn()
    assert ids(call) == ["a", "b", "c"]
    assert [bool(message.error_message) for message in streamed(call)] == [False, True, True]
    assert not call.has_ended


def test_a_models_error_ends_the_stream_if_the_client_wants(frontend, scheduler):
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


def test_messages_after_the_end_are_ignored(frontend):
    call, running = frontend.start(METHOD)
    running.half_close()
    running.receive(request("fast"))
    running.half_close()
    frontend.turn()
    assert (call.sent, call.error) == ([], None)


def test_cancelling_a_stream_cancels_unanswered_requests(frontend, scheduler):
    _, running = frontend.start(METHOD)
    for request_id in "ab":
        running.receive(request(request_id=request_id))
    scheduler.answer(0)
    frontend.turn()
    running.cancel()
    assert [waiting.cancellation.is_cancelled for waiting in scheduler.requests] == [False, True]
    scheduler.answer(1)
    frontend.turn()


ASKS = {"triton_enable_empty_final_response": True}
ASKS_NOT = {"triton_enable_empty_final_response": False}


def summaries(call):
    """Return for each message the request's id, the error's text, and the final flag."""
    return [
        (
            message.infer_response.id,
            message.error_message,
            message.infer_response.parameters["triton_final_response"].bool_param,
        )
        for message in streamed(call)
    ]


@pytest.mark.parametrize(("asks", "is_sent"), [({}, False), (ASKS_NOT, False), (ASKS, True)])
def test_the_empty_final_response_is_sent_on_request(frontend, scheduler, asks, is_sent):
    call, running = frontend.start(METHOD)
    running.receive(request("many", "a", **asks))
    running.half_close()
    scheduler.answer(0, empty=True)
    frontend.turn()
    assert summaries(call) == ([("a", "", True)] if is_sent else [])
    assert (call.has_ended, call.error) == (True, None)


def test_decoupled_responses_do_not_wait(frontend, scheduler):
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


@pytest.mark.parametrize("method", ["ModelInfer", METHOD])
@pytest.mark.parametrize("end", ["answered", "refused", "cancelled"])
def test_an_ended_request_is_freed_without_the_garbage_collector(frontend, scheduler, method, end):
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
            # The call drops messages after the end.
            "cancelled": (1, True) if method == "ModelInfer" else (0, True),
        }[end]
        del call.error  # has a traceback
        assert is_kept() is None
    finally:
        gc.enable()


def test_requests_to_decoupled_models_share_one_backlog(frontend, scheduler):
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


def test_the_number_of_queued_responses_is_limited(scheduler):
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
def test_a_stream_with_many_requests_is_held_until_half_are_answered(frontend, scheduler, model):
    call, running = frontend.start(METHOD)
    for count in range(1024):
        assert not call.is_held, count
        running.receive(request(model))
    assert call.is_held
    for count in range(512):
        assert call.is_held, count
        scheduler.answer(count)
        frontend.turn()
    running.receive(request(model))  # it was already sent
    scheduler.answer(512)
    scheduler.answer(513)
    frontend.turn()
    assert not call.is_held
