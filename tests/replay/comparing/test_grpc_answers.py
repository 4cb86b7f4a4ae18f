"""Comparison of gRPC responses: seeded differences in calls and streams."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from support.http2 import message
from tritonclient.grpc import service_pb2

from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.comparing.differences import compare_answers, failure_of, model_of
from triton_replay.comparing.features import content_of
from triton_replay.comparing.tolerances import Tolerances

VALUES = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def infer(method="ModelInfer", raw=True, **fields):
    request = service_pb2.ModelInferRequest(model_name="m", **fields)
    tensor = request.inputs.add(name="x", datatype="BYTES", shape=[2, 1])
    if raw:
        request.raw_input_contents.append(b"\1\0\0\0a\3\0\0\0abc")
    else:
        tensor.contents.bytes_contents.extend([b"a", b"abc"])
    body = message(request.SerializeToString())
    target = f"/inference.GRPCInferenceService/{method}"
    return Request(0, 0, 0, 0, "POST", target, (), len(body), body, protocol="grpc")


def answer(values=VALUES, raw=True, **fields):
    response = service_pb2.ModelInferResponse(model_name="m", **fields)
    output = response.outputs.add(name="y", datatype="FP32", shape=values.shape)
    if raw:
        response.raw_output_contents.append(values.tobytes())
    else:
        output.contents.fp32_contents.extend(values.ravel().tolist())
    return response


def call(*responses, code=0, text=""):
    body = b"".join(message(one.SerializeToString()) for one in responses)
    trailers = (("grpc-status", str(code)), ("grpc-message", text))
    return Exchange(infer(), Response(0, 0, 0, 200, (), len(body), body, trailers=trailers))


def parameters(**values):
    response = answer()
    for name, value in values.items():
        response.parameters[name].int64_param = value
    return response


def stream(*responses, sent_id=""):
    messages = []
    for one in responses:
        wrapped = (
            service_pb2.ModelStreamInferResponse(error_message=one)
            if isinstance(one, str)
            else service_pb2.ModelStreamInferResponse(infer_response=one)
        )
        body = message(wrapped.SerializeToString())
        messages.append(StreamMessage(0, False, 0, len(body), body))
    ended = Response(0, 0, 0, 200, (), 0, trailers=(("grpc-status", "0"),))
    return Exchange(infer("ModelStreamInfer", id=sent_id), ended, tuple(messages))


def test_the_first_difference_in_nested_fields_is_reported():
    def config(**more):
        steps = [{"model": "a"}, {"model": "b", **more}]
        return Exchange(
            Request(0, 0, 0, 0, "GET", "/v2/models/m/config", (), 0),
            Response(0, 0, 0, 200, (), 0, json.dumps({"name": "m", "steps": steps}).encode()),
        )

    pairs = [config(), config(limit=[1, 2]), config(limit=[1, 3]), config(limit=[1])]
    pairs = [dataclasses.replace(one, response=whole(one.response)) for one in pairs]
    reported = [compare_answers("m", a, b, Tolerances())[0] for a, b in itertools.pairwise(pairs)]
    assert [(one.output, one.detail) for one in reported] == [
        ("steps", "[1].limit: 'None' and '[1, 2]'"),
        ("steps", "[1].limit[1]: '2' and '3'"),
        ("steps", "[1].limit: '[1, 3]' and '[1]'"),
    ]


def whole(response):
    return dataclasses.replace(response, body_size=len(response.body))


WRONG_ROW = VALUES + np.array([[0.0], [1.0]], np.float32)


@pytest.mark.parametrize(
    ("a", "b", "kinds"),
    [
        (call(answer()), call(answer(raw=False)), []),
        (call(answer()), call(answer(VALUES * np.float32(1.001))), ["rounding"]),
        (call(answer()), call(answer(WRONG_ROW)), ["values of some rows"]),
        (call(answer()), call(answer(VALUES.T.reshape(1, 4))), ["shape"]),
        (call(answer(model_version="1")), call(answer(model_version="2")), ["field"]),
        (call(answer()), call(answer(model_version="2")), []),
        (call(answer()), call(answer(id="invented")), []),
        (call(answer()), call(code=5, text="gone"), ["status"]),
        (call(code=5, text="a%20b"), call(code=5, text="a b"), []),
        (call(code=5, text="a"), call(code=5, text="b"), ["error text"]),
        (
            stream(answer(id="1"), answer(id="2"), sent_id="1"),
            stream(answer(id="2"), answer(id="1"), sent_id="1"),
            [],
        ),
        # Invented ids have no order: the responses are compared as they arrived.
        (
            stream(answer(id="1"), answer(WRONG_ROW, id="2")),
            stream(answer(id="9"), answer(WRONG_ROW, id="3")),
            [],
        ),
        (
            stream(answer(id="1"), answer(WRONG_ROW, id="2")),
            stream(answer(WRONG_ROW, id="9"), answer(id="3")),
            ["order"],
        ),
        (call(parameters(ms=1)), call(parameters(ms=2)), ["field"]),
        (stream(answer(), answer(WRONG_ROW)), stream(answer(WRONG_ROW), answer()), ["order"]),
        (stream(answer(), answer()), stream(answer(), answer(WRONG_ROW)), ["values of some rows"]),
        (stream(answer(), answer()), stream(answer()), ["stream responses missing"]),
        (stream(answer()), stream("lost"), ["error text", "field", "output missing"]),
    ],
)
def test_differences_of_calls_and_streams_are_found(a, b, kinds):
    assert sorted(one.kind for one in compare_answers("m", a, b, Tolerances())) == kinds


def test_ignored_parameters_of_a_call_are_not_compared():
    pair = call(parameters(ms=1)), call(parameters(ms=2))
    (difference,) = compare_answers("m", *pair, Tolerances())
    assert (difference.output, difference.detail) == ("parameters", "ms: '1' and '2'")
    assert not compare_answers("m", *pair, Tolerances(ignored=("parameters.ms",)))


@pytest.mark.parametrize(
    ("exchange", "failure"),
    [
        (call(answer()), ""),
        (stream(answer(), answer()), ""),
        (call(code=14, text="gone"), "gRPC status 14"),
        (stream(answer(), "lost"), "error in the stream"),
        # The server reset the call before its trailers.
        (Exchange(infer(), Response(0, 0, 0, 200, (), 0, ended="server")), "no response"),
        (Exchange(infer(), None), "no response"),
    ],
)
def test_a_failed_call_has_its_reason(exchange, failure):
    assert failure_of(exchange) == failure


@pytest.mark.parametrize(("raw", "form"), [(True, "raw"), (False, "typed")])
def test_the_model_and_the_properties_of_a_call(raw, form):
    request = infer(raw=raw, model_version="2" if raw else "")
    assert model_of(request) == "m"
    content = content_of(request)
    assert content.numbers == {
        "rows": 2,
        "size of axis 0 of x": 2,
        "size of axis 1 of x": 1,
        "number of elements of x": 2,
        "bytes of the longest element of x": 3,
        "bytes of the shortest element of x": 1,
    }
    assert content.labels["form of the inputs"] == form
    assert content.labels["model version"] == ("2" if raw else "absent")
