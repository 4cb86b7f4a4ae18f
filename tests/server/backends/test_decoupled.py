"""Tests of decoupled models, coroutines and rescheduled requests."""

import queue
import threading

import pytest
from server.backends.kit import (
    DROPPED,
    FAILED,
    answer,
    executing,
    execution_error,
    outputs,
    request,
)
from server.support.requests import PATIENCE_S, Answers

from reference_server.core.errors import Code

MUST_RETURN_NONE = (
    FAILED + "Python model 'm_0_0' is using the decoupled mode and the execute function must "
    "return None."
)
OUT = "out = lambda *n: pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.float32(n))])"
SENDERS = "senders = [r.get_response_sender() for r in requests]"
RESCHEDULE = "pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"


@pytest.fixture
def open_decoupled(open_model):
    """A function that opens a decoupled model whose `execute` consists of the given lines."""

    def open_one(*lines, is_async=False, **changes):
        source = executing(OUT, SENDERS, *lines)
        if is_async:
            source = source.replace("def execute", "async def execute")
        return open_model(source, is_decoupled=True, **changes)

    return open_one


def asked(id="", **arrays):
    """Return a request that records its responses."""
    one = request(id=id, **arrays)
    one.sink = Answers()
    return one


def numbers(one):
    """Return the numbers of the next response, and whether it is the last."""
    response = one.sink.wait()
    return outputs(response).get("OUT"), response.final


# ----------------------------------------------------------------------------------- plain execute


def test_any_number_of_responses(open_decoupled):
    opened = open_decoupled(
        "for s, count in zip(senders, range(3)):",
        "    for n in range(count): s.send(out(n))",
        "    s.send(flags=1)",
    )
    batch = [asked(), asked(), asked()]
    execution = opened.execute(batch)
    assert (list(execution.responses), execution.failed) == ([None] * 3, False)
    for count, one in enumerate(batch):
        assert [numbers(one) for _ in range(count)] == [([n], False) for n in range(count)]
        assert one.sink.wait().empty


@pytest.mark.parametrize("value", ["[]", "[out(1)]", "0", "senders"])
def test_execute_of_a_decoupled_model_returns_nothing(open_decoupled, value, caplog):
    opened = open_decoupled("senders[0].send(out(1), 1)", f"return {value}")
    ended, still_open = asked(), asked()
    assert opened.execute([ended, still_open]).failed
    assert numbers(ended) == ([1], True)
    error = still_open.sink.wait().error
    assert (error.code, error.message) == (Code.INTERNAL, MUST_RETURN_NONE)
    assert ended.sink.is_empty
    assert caplog.messages.count(MUST_RETURN_NONE) == 1


def test_an_exception_fails_unanswered_requests(open_decoupled, tmp_path):
    opened = open_decoupled(
        "senders[0].send(out(1), 1)", "senders[1].send(out(2))", "raise ValueError('x')"
    )
    batch = [asked(), asked(), asked()]
    assert opened.execute(batch).failed
    assert numbers(batch[0]) == ([1], True)
    assert numbers(batch[1]) == ([2], False)
    for one in batch[1:]:
        failed = one.sink.wait()
        assert failed.final
        assert failed.error.message == (
            f"{FAILED}ValueError: x\n\nAt:\n  {tmp_path}/m/1/model.py(11): execute\n"
        )
    assert all(one.sink.is_empty for one in batch)


def test_a_request_without_a_sender_fails(open_model):
    opened = open_model(executing("pass"), is_decoupled=True)
    one = asked()
    opened.execute([one])
    assert one.sink.wait().error.message == FAILED + DROPPED


def test_a_sender_may_be_requested_after_execute(open_model):
    opened = open_model(
        executing(
            OUT,
            "if requests[0].request_id() == 'keep': self.kept = requests[0]; return",
            "self.kept.get_response_sender().send(out(1), 1)",
            "del self.kept",
            "requests[0].get_response_sender().send(flags=1)",
        ),
        is_decoupled=True,
    )
    one, other = asked("keep"), asked("now")
    opened.execute([one])
    opened.execute([other])
    assert numbers(one) == ([1], True)


# -------------------------------------------------------------------------------------- coroutines


def test_coroutines_of_a_decoupled_model_run_side_by_side(open_decoupled):
    opened = open_decoupled(
        "import asyncio",
        "self.waiting = [*getattr(self, 'waiting', []), asyncio.Event()]",
        "if len(self.waiting) < 3: await self.waiting[-1].wait()",
        "for event in self.waiting: event.set()",
        "senders[0].send(out(1), 1)",
        "return ['text']",
        is_async=True,
    )
    batch = [asked(), asked(), asked()]
    for one in batch:  # the first two end when the third has come
        opened.execute([one])
    assert [numbers(one) for one in batch] == [([1], True)] * 3


@pytest.mark.parametrize("error", ["ValueError('late')", "SystemExit(3)"])
def test_an_exception_in_a_coroutine_fails_unanswered_requests(open_decoupled, error, caplog):
    opened = open_decoupled("senders[0].send(out(1), 1)", f"raise {error}", is_async=True)
    ended, still_open = asked(), asked()
    assert not opened.execute([ended, still_open]).failed
    message = still_open.sink.wait().error.message
    assert message.startswith(FAILED + error.partition("(")[0])
    assert "model.py(10): execute\n" in message
    assert numbers(ended) == ([1], True)
    assert ended.sink.is_empty
    assert message in caplog.messages


# ------------------------------------------------------------------------------- ordinary models


@pytest.mark.parametrize("returned", ["None", "[None]"])
def test_an_ordinary_model_may_send_its_response(open_model, returned):
    opened = open_model(executing(OUT, SENDERS, "senders[0].send(out(1), 1)", f"return {returned}"))
    assert outputs(answer(opened, request())) == {"OUT": [1]}


@pytest.mark.parametrize(("flags", "is_error"), [(0, True), (1, False)])
def test_a_response_both_sent_and_returned_is_an_error(open_model, flags, is_error, caplog):
    opened = open_model(
        executing(OUT, SENDERS, f"senders[0].send(out(1), {flags})", "return [out(2)]")
    )
    one = asked()
    assert list(opened.execute([one]).responses) == [None]
    response = one.sink.wait()
    text = (
        FAILED + "Unable to send response. Non-decoupled model cannot send more than one response."
    )
    assert response.final
    assert (response.error is not None) is is_error
    assert one.sink.is_empty
    assert text in caplog.messages


@pytest.mark.parametrize("line", ["senders[0].send(out(2))", "raise ValueError"])
def test_an_error_follows_the_sent_response(open_model, line):
    opened = open_model(executing(OUT, SENDERS, "senders[0].send(out(1))", line))
    one = asked()
    assert opened.execute([one]).failed
    assert numbers(one) == ([1], False)
    last = one.sink.wait()
    assert last.final
    assert last.error is not None
    assert one.sink.is_empty


def test_the_sender_of_an_answered_request_is_closed(open_model):
    opened = open_model(
        executing(
            OUT,
            "if not hasattr(self, 'kept'): self.kept = requests[0]; return [out(1)]",
            "try: self.kept.get_response_sender().send(out(2), 1)",
            "except pb_utils.TritonModelException as e: text = str(e)",
            "return [pb_utils.InferenceResponse([pb_utils.Tensor('TEXT', np.array([text], 'O'))])]",
        )
    )
    answer(opened, request())
    assert outputs(answer(opened, request())) == {
        "TEXT": [b"Unable to send response. Response sender has been closed."]
    }


# ------------------------------------------------------------------------------------ given again


def test_a_request_is_rescheduled(open_model):
    opened = open_model(
        executing(
            OUT,
            f"requests[0].set_release_flags({RESCHEDULE})",
            "return [None, out(2)]",
        ),
        is_iterative=True,
    )
    first, second = asked(), asked()
    execution = opened.execute([first, second])
    assert execution.rescheduled == {0}
    assert execution.responses[0] is None
    assert outputs(execution.responses[1]) == {"OUT": [2]}
    assert first.sink.is_empty


def test_a_decoupled_request_is_answered_in_several_executions(open_decoupled):
    opened = open_decoupled(
        "self.turn = getattr(self, 'turn', 0) + 1",
        "senders[0].send(out(self.turn), 1 if self.turn == 3 else 0)",
        f"if self.turn < 3: requests[0].set_release_flags({RESCHEDULE})",
        is_iterative=True,
    )
    one = asked()
    given = [opened.execute([one]).rescheduled for _ in range(3)]
    assert given == [{0}, {0}, set()]
    assert [numbers(one) for _ in range(3)] == [([1], False), ([2], False), ([3], True)]
    assert one.sink.is_empty


def test_an_answered_request_is_not_rescheduled(open_decoupled):
    opened = open_decoupled(
        "senders[0].send(out(1), 1)",
        f"requests[0].set_release_flags({RESCHEDULE})",
        is_iterative=True,
    )
    one = asked()
    assert opened.execute([one]).rescheduled == frozenset()
    assert numbers(one) == ([1], True)
    assert one.sink.is_empty


def test_a_response_to_a_rescheduled_request_fails_the_batch(open_model):
    opened = open_model(
        executing(OUT, f"requests[0].set_release_flags({RESCHEDULE})", "return [out(1)]"),
        is_iterative=True,
    )
    assert execution_error(opened) == (
        f"{FAILED}Expected a None object in the execute function return list for reschduled "
        "request, found type '<class 'c_python_backend_utils.InferenceResponse'>'."
    )


def test_after_an_exception_no_request_is_rescheduled(open_model):
    opened = open_model(
        executing(f"requests[0].set_release_flags({RESCHEDULE})", "raise ValueError('x')"),
        is_iterative=True,
    )
    assert "ValueError: x" in execution_error(opened)


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_a_model_that_is_not_iterative_cannot_reschedule(open_model, is_decoupled):
    opened = open_model(
        executing(f"requests[0].set_release_flags({RESCHEDULE})"), is_decoupled=is_decoupled
    )
    one = asked()
    assert opened.execute([one]).rescheduled == frozenset()
    assert one.sink.wait().error.message == (
        f"{FAILED}Failed to release request: Request is released with "
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag."
    )
    assert one.sink.is_empty


# ---------------------------------------------------------------------------------------- the end


def test_finalize_waits_for_all_responses(open_decoupled, open_model):
    told = queue.SimpleQueue()
    opened = open_decoupled("self.sender = senders[0]")
    model = opened._model
    type(model).finalize = lambda self: told.put("finalized")
    one = asked()
    opened.execute([one])
    closing = threading.Thread(target=opened.close)
    closing.start()
    model.sender.send(flags=1)
    assert told.get(timeout=PATIENCE_S) == "finalized"
    closing.join(PATIENCE_S)
    assert one.sink.wait().empty
