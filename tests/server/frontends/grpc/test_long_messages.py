"""Long messages of a stream: read on another thread, in their order."""

import numpy as np
import pytest
from server.frontends.grpc.test_stream import MODEL, ids
from server.support.clock import ManualClock
from server.support.frontend import answering, gateway, served
from server.support.grpc import MadeUpCall, WaitingScheduler, streamed
from tritonclient.grpc import service_pb2 as pb

from reference_server.core.backlog import ANY_NUMBER
from reference_server.core.profiles import V2_51
from reference_server.frontends.grpc import inference, streaming
from reference_server.gateway.inference import Inferences, deliver
from reference_server.gateway.shared_memory import SharedMemory

LONG = 40_000  # elements of typed contents, enough for another thread


class Apart:
    """Another thread, which runs one piece of work when a test says so."""

    def __init__(self):
        self.waiting = []

    def run(self, *work):
        self.waiting.append(work)

    def do(self):
        work, done, failed = self.waiting.pop(0)
        try:
            result = work()
        except Exception as error:
            failed(error)
        else:
            done(result)


@pytest.fixture
def apart():
    return Apart()


@pytest.fixture
def scheduler():
    return WaitingScheduler()


@pytest.fixture
def stream(apart, scheduler):
    """Return call and handler of a stream to `slow` and `many`, which keep their requests."""
    models = [
        served(MODEL + more, name, answer=answering())
        for name, more in (("slow", ""), ("many", "model_transaction_policy { decoupled: true }"))
    ]
    for model in models:
        object.__setattr__(model, "scheduler", scheduler)
    inferences = Inferences(
        *(gateway(*models), SharedMemory(), ManualClock(), inference.TRACE_EVENTS, deliver),
        apart.run,
    )
    call = MadeUpCall()
    method = inference.methods(inferences, apart.run, V2_51, ANY_NUMBER)["ModelStreamInfer"]
    return call, method.start(call)


def message(request_id, size=1, model="slow"):
    asked = pb.ModelInferRequest(model_name=model, id=request_id)
    tensor = asked.inputs.add(name="X", datatype="FP32", shape=[size])
    tensor.contents.fp32_contents.extend(np.arange(size, dtype=np.float32))
    return asked.SerializeToString()


def asked(scheduler):
    return [request.id for request in scheduler.requests]


@pytest.mark.parametrize("model", ["slow", "many"])
def test_messages_behind_a_long_one_wait(stream, apart, scheduler, model):
    call, running = stream
    for request_id, size in (("a", 1), ("b", LONG), ("c", 1), ("d", LONG), ("e", 1)):
        running.receive(message(request_id, size, model))
    running.half_close()
    assert asked(scheduler) == ["a"]
    apart.do()  # read
    assert asked(scheduler) == ["a"]
    apart.do()  # decoded
    assert asked(scheduler) == ["a", "b", "c"]
    for _ in range(2):
        apart.do()
    assert asked(scheduler) == ["a", "b", "c", "d", "e"]
    assert scheduler.requests[3].inputs["X"].shape == (LONG,)
    for number in range(5):
        assert not call.has_ended
        scheduler.answer(number)
    assert (ids(call), call.has_ended) == (list("abcde"), True)


def test_a_stream_that_is_cancelled_reads_no_more(stream, apart, scheduler):
    call, running = stream
    running.receive(message("a", LONG))
    running.receive(message("b"))
    running.cancel()
    apart.do()
    assert (asked(scheduler), apart.waiting, call.sent) == ([], [], [])


def test_a_request_that_is_read_while_its_stream_is_cancelled_is_cancelled(
    stream, apart, scheduler
):
    _, running = stream
    running.receive(message("a", LONG))
    apart.do()
    running.cancel()
    apart.do()
    assert [request.cancellation.is_cancelled for request in scheduler.requests] == [True]


@pytest.mark.parametrize("model", ["absent", "slow"])
def test_a_rejected_long_message_is_answered_in_order(stream, apart, scheduler, model):
    call, running = stream
    running.receive(message("a"))
    wrong = pb.ModelInferRequest.FromString(message("b", LONG, model))
    wrong.inputs[0].datatype = "INT32"
    running.receive(wrong.SerializeToString())
    running.receive(message("c"))
    while apart.waiting:
        apart.do()
    assert asked(scheduler) == ["a", "c"]
    scheduler.answer(0)
    scheduler.answer(1)
    texts = [one.error_message for one in streamed(call)]
    assert [bool(text) for text in texts] == [False, True, False]
    assert ids(call) == ["a", "b", "c"]


def test_an_unreadable_long_message_ends_the_stream(stream, apart):
    call, running = stream
    running.receive(message("a", LONG) + b"\x2a\xff")
    apart.do()
    assert call.has_ended


def test_many_small_fields_are_long_and_few_large_ones_are_not(stream, apart, scheduler):
    _, running = stream
    asked = pb.ModelInferRequest(model_name="slow")
    asked.inputs.add(name="X", datatype="FP32", shape=[1 << 16])
    asked.raw_input_contents.append(bytes(4 << 16))
    running.receive(asked.SerializeToString())
    assert (len(scheduler.requests), apart.waiting) == (1, [])
    asked.raw_input_contents.extend([b""] * 3000)
    running.receive(asked.SerializeToString())
    assert (len(scheduler.requests), len(apart.waiting)) == (1, 1)


def test_messages_behind_a_long_one_count_as_in_flight(stream, apart, monkeypatch):
    call, running = stream
    long = message("a", LONG)
    monkeypatch.setattr(streaming, "_MAX_IN_FLIGHT_BYTES", 3 * len(long))
    for _ in range(2):
        running.receive(long)
        assert not call.is_held
    running.receive(long)
    assert call.is_held
    while apart.waiting:
        apart.do()
    assert call.is_held  # they are executed
    running.cancel()
