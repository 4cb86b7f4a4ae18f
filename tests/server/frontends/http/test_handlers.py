"""Requests over HTTP, beyond the rows of tests/recorded/test_http.py."""

import json
from dataclasses import replace

import numpy as np
import pytest
from server.support.frontend import Frontend, answering, failing, served
from server.support.http import get, post
from server.support.model_folders import VECTOR

from reference_server.core.errors import invalid_arg, not_found, unavailable
from reference_server.core.request import InferResponse

ONE_TWO = np.array([1, 2], np.float32)
JSON, PLAIN = "application/json", "text/plain"
INFER = "/v2/models/m/infer"
REQUEST = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
BODY = json.dumps(REQUEST).encode()


class HoldingScheduler:
    """A scheduler that only keeps its requests."""

    def __init__(self):
        self.requests = []

    def submit(self, request):
        self.requests.append(request)


@pytest.fixture
def frontend():
    return Frontend(
        served(VECTOR, answer=answering(Y=ONE_TWO)),
        served(VECTOR + "model_transaction_policy { decoupled: true }", "decoupled"),
    )


def shown(reply):
    """Return status, type and body."""
    return reply.status, reply.header("Content-Type"), reply.body.decode()


def error(text):
    return f'{{"error":"{text}"}}'


@pytest.mark.parametrize(
    ("raised", "status"),
    [(not_found("gone"), 404), (unavailable("gone"), 503), (invalid_arg("gone"), 400)],
)
def test_a_models_error_is_plain_text(raised, status):
    reply = Frontend(served(VECTOR, answer=failing(raised))).ask(post(INFER, BODY))
    assert shown(reply) == (status, PLAIN, error("gone"))


def test_a_rejection_of_the_scheduler_is_json():
    def refuse(request):
        raise unavailable("stopping")

    reply = Frontend(served(VECTOR, answer=refuse)).ask(post(INFER, BODY))
    assert shown(reply) == (503, JSON, error("stopping"))


def broken(request):
    raise ZeroDivisionError("a defect")


class Unwritable:
    """An output that cannot be encoded."""

    name = "Y"
    shape = ()
    datatype = None


@pytest.mark.parametrize(
    ("answer", "content_type", "text"),
    [
        pytest.param(broken, JSON, "ZeroDivisionError: a defect", id="while asking"),
        pytest.param(
            lambda request: InferResponse("m", 1, "", [Unwritable()]),
            PLAIN,
            "AttributeError: 'Unwritable' object has no attribute 'is_raw'",
            id="while answering",
        ),
    ],
)
def test_a_defect_is_answered(answer, content_type, text):
    frontend = Frontend(served(VECTOR, answer=answer))
    assert shown(frontend.ask(post(INFER, BODY))) == (500, content_type, error(text))
    assert frontend.ask(get("/v2/health/live")).status == 200


@pytest.mark.parametrize(
    ("count", "query", "header", "apart"),
    [
        (1 << 13, "", "", 0),
        ((1 << 13) + 1, "", "", 1),
        (1 << 14, "binary", "", 0),
        (1 << 14, "binary", "Accept-Encoding: gzip", 1),
    ],
)
def test_long_responses_are_encoded_on_another_thread(count, query, header, apart):
    values = np.arange(count, dtype=np.float32)
    frontend = Frontend(served(VECTOR, answer=answering(Y=values)))
    asked = json.loads(BODY)
    if query:
        asked["parameters"] = {"binary_data_output": True}
    reply = frontend.ask(post(INFER, json.dumps(asked).encode(), *filter(None, [header])))
    assert (reply.status, frontend.background.count) == (200, apart)
    if not query:
        assert json.loads(reply.body)["outputs"][0]["data"] == values.tolist()


def test_a_disconnected_client_cancels_its_request():
    model = served(VECTOR)
    waiting = replace(model, scheduler=HoldingScheduler())
    frontend = Frontend(waiting)
    frontend.client.send(post(INFER, BODY))
    frontend.client.leave()
    (request,) = waiting.scheduler.requests
    assert request.cancellation.is_cancelled
    request.sink.send(answering(Y=ONE_TWO)(request))
    assert frontend.ask_all(b"") == []


def test_a_half_closed_client_is_cancelled_and_still_answered():
    waiting = replace(served(VECTOR), scheduler=HoldingScheduler())
    frontend = Frontend(waiting)
    frontend.client.send(post(INFER, BODY) + post(INFER, BODY))
    frontend.client.half_close()
    (request,) = waiting.scheduler.requests
    assert request.cancellation.is_cancelled
    request.sink.send(answering(Y=ONE_TWO)(request))
    frontend.exchange(b"")
    assert [reply.status for reply in frontend.client.replies()] == [200]
    assert len(waiting.scheduler.requests) == 1
    assert frontend.client.is_closed


@pytest.mark.parametrize(
    ("text", "apart"), [(b"x" * 60_000, 0), (b"\n" * 70_000, 1)], ids=["short", "long"]
)
@pytest.mark.parametrize("path", [INFER, "/v2/models/m/generate"])
def test_long_strings_and_ids_are_encoded_on_another_thread(text, apart, path):
    answer = answering(Y=np.array([text], object))
    frontend = Frontend(served(VECTOR, answer=answer))
    body = BODY if path == INFER else b'{"X":[1,2]}'
    frontend.exchange(post(path, body))
    assert b" 200 OK" in frontend.client.received()
    assert frontend.background.count == apart
    long_id = Frontend(served(VECTOR, answer=answering(Y=np.float32([1]))))
    body = json.dumps(json.loads(body) | {"id": text.decode()}).encode()
    long_id.exchange(post(path, body))
    assert b" 200 OK" in long_id.client.received()
    assert long_id.background.count >= apart


def test_the_statistics_of_many_models_are_encoded_on_another_thread():
    few = Frontend(*(served(VECTOR, f"m{number}") for number in range(16)))
    many = Frontend(*(served(VECTOR, f"m{number}") for number in range(17)))
    replies = [
        json.loads(one.ask(get("/v2/models/stats")).body)["model_stats"] for one in (few, many)
    ]
    assert [len(models) for models in replies] == [16, 17]
    assert (few.background.count, many.background.count) == (0, 1)
