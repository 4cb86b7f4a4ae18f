"""Settings over HTTP, and traces of HTTP requests."""

import json

import numpy as np
import pytest
from server.support.frontend import Frontend, answering, failing, served
from server.support.http import get, post
from server.support.model_folders import VECTOR

from reference_server.core.errors import unavailable
from reference_server.options import LogOptions, TraceOptions

INFER = "/v2/models/m/infer"
X = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}
BODY = json.dumps({"inputs": [X]}).encode()
FRONT = ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a frontend which traces every request into its own file."""

    def make(answer=None):
        trace = TraceOptions(
            file=str(tmp_path / "t"), levels=frozenset({"TIMESTAMPS"}), rate=1, log_frequency=1
        )
        model = served(VECTOR, answer=answer or answering(Y=np.float32([1])))
        return Frontend(model, trace=trace, log=LogOptions(file="log"))

    return make


@pytest.fixture
def frontend(make):
    return make()


@pytest.fixture
def traced(tmp_path):
    """Return a function that reads the frontend's events from the trace file."""

    def read():
        (file,) = tmp_path.glob("t.*")
        stamps = [element.get("timestamps", [{}])[0] for element in json.loads(file.read_text())]
        return [stamp["name"] for stamp in stamps if stamp.get("name", "").startswith("HTTP")]

    return read


@pytest.mark.parametrize("path", [INFER, "/v2/models/m/generate", "/v2/models/m/generate_stream"])
def test_a_request_is_traced_from_its_receipt_to_its_reply(frontend, traced, path):
    frontend.exchange(post(path, BODY if path == INFER else b'{"X":1}'))
    assert traced() == FRONT


def test_an_error_is_traced(make, traced):
    frontend = make(failing(unavailable("not now")))
    frontend.exchange(post(INFER, BODY))
    assert traced() == FRONT


@pytest.mark.parametrize(
    "request_",
    [
        post(INFER, b"{"),
        post(INFER, b'{"inputs":[]}'),
        post(INFER, BODY, "Content-Encoding: x"),
        post("/v2/models/m/generate", b"{}"),
        post("/v2/models/m/generate", b"{}", "Content-Encoding: x"),
    ],
)
def test_a_rejected_request_is_traced(frontend, traced, request_):
    frontend.exchange(request_)
    assert traced() == FRONT[:2]


def test_an_unknown_model_is_not_traced(frontend, tmp_path):
    frontend.exchange(post("/v2/models/absent/infer", BODY))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/m/trace/setting"])
def test_trace_settings_are_read_and_changed(frontend, path):
    before = json.loads(frontend.ask(get(path)).body)
    assert before["trace_level"] == ["TIMESTAMPS"]
    after = json.loads(frontend.ask(post(path, b'{"trace_rate":"7"}')).body)
    assert after == before | {"trace_rate": "7"}
    assert json.loads(frontend.ask(get(path)).body) == after
