"""Tests of outputs with a configured `reshape`: clients see `dims`."""

import numpy as np
import pytest
from server.support.instances import Answering
from server.support.requests import Answers, a_request, array_tensor, signature

from reference_server.backends.instances import with_reshaped_outputs
from reference_server.core.errors import Code
from reference_server.core.request import Execution, InferResponse
from reference_server.core.tensor import DataType

SIGNATURE = signature(
    outputs={"Y": (DataType.FP32, [4], {"reshape": (2, 2)}), "Z": (DataType.FP32, [-1])}
)


def response(*, shape=(2, 2), **fields):
    made = np.zeros(shape, np.float32)
    return InferResponse("m", 1, "", [array_tensor("Y", made), array_tensor("Z", made)], **fields)


@pytest.fixture
def asked():
    return a_request(sink=Answers())


def shapes(answered):
    return [tensor.shape for tensor in answered.outputs]


def test_returned_responses_are_reshaped(asked):
    instance = with_reshaped_outputs(
        Answering(lambda requests: Execution([response()], 0, 0)), SIGNATURE
    )
    (answered,) = instance.execute([asked]).responses
    assert shapes(answered) == [(4,), (2, 2)]


def test_sent_responses_are_reshaped(asked):
    sinks = []

    def execute(requests):
        sinks.append(requests[0].sink)
        sinks[0].send(response(final=False))
        return Execution([None], 0, 0)

    instance = with_reshaped_outputs(Answering(execute), SIGNATURE)
    answers = asked.sink
    instance.execute([asked])
    sinks[0].send(response())
    assert [shapes(answers.wait()) for _ in range(2)] == [[(4,), (2, 2)]] * 2


def test_a_rescheduled_request_is_reshaped_once(asked):
    seen = []

    def execute(requests):
        seen.append(requests[0].sink)
        return Execution([None], 0, 0, rescheduled=frozenset({0}))

    instance = with_reshaped_outputs(Answering(execute), SIGNATURE)
    answers = asked.sink
    for _ in range(2):
        instance.execute([asked])
        assert asked.sink is answers
    seen[1].send(response())
    assert shapes(answers.wait()) == [(4,), (2, 2)]
    assert answers.is_empty


def test_an_output_of_another_size_fails_its_request_only(asked):
    def execute(requests):
        requests[0].sink.send(response(shape=(3, 3), final=False))
        return Execution([response(shape=(3, 2)), response()], 0, 0)

    answers = asked.sink
    instance = with_reshaped_outputs(Answering(execute), SIGNATURE)
    returned, good = instance.execute([asked, a_request()]).responses
    for answered in (answers.wait(), returned):
        assert (answered.error.code, answered.error.message) == (
            Code.INTERNAL,
            "output tensor shape does not match size of output for 'Y'",
        )
        assert answered.outputs == ()
    assert shapes(good) == [(4,), (2, 2)]


def test_a_model_without_reshape_is_not_wrapped():
    instance = Answering(None)
    assert (
        with_reshaped_outputs(instance, signature(outputs={"Y": (DataType.FP32, [4])})) is instance
    )
