"""Each operation over HTTP: status, type and body, from bytes to bytes."""

import gzip
import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from server.support.frontend import Frontend, answering, failing, served
from server.support.http import get, post

from reference_server.core.errors import invalid_arg, not_found, unavailable
from reference_server.core.request import InferResponse
from reference_server.gateway.gateway import EXTENSIONS

VECTOR = """
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
ONE_TWO = np.array([1, 2], np.float32)
JSON, PLAIN, BINARY = "application/json", "text/plain", "application/octet-stream"
INFER = "/v2/models/m/infer"
REQUEST = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
BODY = json.dumps(REQUEST).encode()
REPLY = (
    b'{"model_name":"m","model_version":"1",'
    b'"outputs":[{"name":"Y","datatype":"FP32","shape":[2],"data":[1.0,2.0]}]}'
)


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


# -------------------------------------------------------------------------------------- reading


def test_live(frontend):
    assert shown(frontend.ask(get("/v2/health/live"))) == (200, PLAIN, "")


@pytest.mark.parametrize(("is_complete", "status"), [(True, 200), (False, 400)])
def test_ready(is_complete, status):
    reply = Frontend(is_complete=is_complete).ask(get("/v2/health/ready"))
    assert shown(reply) == (status, PLAIN, "")


def test_server_metadata(frontend):
    extensions = ",".join(f'"{name}"' for name in EXTENSIONS)
    assert shown(frontend.ask(get("/v2"))) == (
        200,
        JSON,
        f'{{"name":"triton","version":"2.51.0","extensions":[{extensions}]}}',
    )


def test_model_metadata(frontend):
    assert shown(frontend.ask(get("/v2/models/m"))) == (
        200,
        JSON,
        '{"name":"m","versions":["1"],"platform":"python",'
        '"inputs":[{"name":"X","datatype":"FP32","shape":[-1]}],'
        '"outputs":[{"name":"Y","datatype":"FP32","shape":[-1]}]}',
    )


def test_model_config(frontend):
    status, content_type, body = shown(frontend.ask(get("/v2/models/m/config")))
    assert (status, content_type) == (200, JSON)
    assert body.startswith('{"name":"m","platform":"","backend":"python",')


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/models/m/ready", (200, PLAIN, "")),
        ("/v2/models/m/versions/1/ready", (200, PLAIN, "")),
        ("/v2/models/m/versions/7/ready", (400, PLAIN, error("Model version not ready"))),
        ("/v2/models/absent/ready", (400, PLAIN, error("Model version not ready"))),
    ],
)
def test_model_ready(frontend, path, expected):
    assert shown(frontend.ask(get(path))) == expected


def test_statistics_of_a_model(frontend):
    frontend.ask(post(INFER, BODY))
    status, content_type, body = shown(frontend.ask(get("/v2/models/m/stats")))
    assert (status, content_type) == (200, JSON)
    assert body.startswith('{"model_stats":[{"name":"m","version":"1","last_inference":0,')


def test_statistics_of_all_models(frontend):
    listed = json.loads(frontend.ask(get("/v2/models/stats")).body)["model_stats"]
    assert [entry["name"] for entry in listed] == ["decoupled", "m"]


# ----------------------------------------------------------------------------------- rejections

HUGE = "9" * 20
TOO_LARGE = error(
    f"failed to get model version from specified version string '{HUGE}' (details: stol), "
    "version should be an integral value > 0"
)
UNKNOWN = error("Request for unknown model: 'absent' is not found")
NOT_ALLOWED = error("Method Not Allowed")

#: Error bodies typed as JSON, and those that Triton's HTTP library types as plain text.
REFUSED = {
    "unknown URL": (get("/v2/nothing"), (404, PLAIN, error("Not Found"))),
    "unknown URL, posted": (post("/v2/nothing", b"{}"), (404, PLAIN, error("Not Found"))),
    **{
        f"405 of {path}": (get(path, method="DELETE"), (405, content_type, NOT_ALLOWED))
        for path, content_type in {
            "/v2": JSON,
            "/v2/health/live": PLAIN,
            "/v2/health/ready": PLAIN,
            "/v2/models/m": JSON,
            "/v2/models/m/ready": PLAIN,
            "/v2/models/m/config": JSON,
            "/v2/models/m/stats": JSON,
            "/v2/models/stats": JSON,
            INFER: PLAIN,
        }.items()
    },
    "405 of a known method": (post("/v2", b""), (405, JSON, NOT_ALLOWED)),
    "405 of an unknown method": (get("/v2", method="FOO"), (405, JSON, NOT_ALLOWED)),
    "405 of HEAD": (get("/v2", method="HEAD"), (405, JSON, NOT_ALLOWED)),
    "405 before the model": (get("/v2/models/absent/infer"), (405, PLAIN, NOT_ALLOWED)),
    "metadata of absent": (get("/v2/models/absent"), (404, JSON, UNKNOWN)),
    "config of absent": (get("/v2/models/absent/config"), (404, JSON, UNKNOWN)),
    "infer of absent": (post("/v2/models/absent/infer", BODY), (404, PLAIN, UNKNOWN)),
    "statistics of absent": (
        get("/v2/models/absent/stats"),
        (400, JSON, error("requested model 'absent' is not available")),
    ),
    "version too large: metadata": (
        get(f"/v2/models/m/versions/{HUGE}"),
        (400, JSON, TOO_LARGE),
    ),
    "version too large: ready": (
        get(f"/v2/models/m/versions/{HUGE}/ready"),
        (400, PLAIN, TOO_LARGE),
    ),
    "version too large: infer": (
        post(f"/v2/models/m/versions/{HUGE}/infer", BODY),
        (400, PLAIN, TOO_LARGE),
    ),
    "version too large, of absent": (
        post(f"/v2/models/absent/versions/{HUGE}/infer", BODY),
        (400, PLAIN, TOO_LARGE),
    ),
    "decoupled": (
        post("/v2/models/decoupled/infer", b"{"),
        (
            501,
            PLAIN,
            error("HTTP end point doesn't support models with decoupled transaction policy"),
        ),
    ),
    "content encoding before header length": (
        post(INFER, BODY, "Content-Encoding: br", "Inference-Header-Content-Length: 999"),
        (501, PLAIN, error("Unsupported compression type")),
    ),
    "nothing to decompress": (
        post(INFER, b"", "Content-Encoding: gzip"),
        (400, PLAIN, error("nothing to be decompressed")),
    ),
    "header length": (
        post(INFER, b"{}", "Inference-Header-Content-Length: 3"),
        (400, PLAIN, error("inference header size should be in range (0, 2), got: 3")),
    ),
    "JSON": (
        post(INFER, b"{"),
        (
            500,
            JSON,
            error(
                "failed to parse the request JSON buffer: Missing a name for object member. at 1"
            ),
        ),
    ),
    "missing member": (
        post(INFER, b"{}"),
        (
            500,
            JSON,
            error(
                "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"
            ),
        ),
    ),
    "validation": (
        post(INFER, b'{"inputs":[]}', "Inference-Header-Content-Length: 13"),
        (
            400,
            JSON,
            error(
                "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'm'. Got "
                "input(s) [], but missing required input(s) ['X']. Please provide all required "
                "input(s)."
            ),
        ),
    ),
}


@pytest.mark.parametrize(("request_", "expected"), REFUSED.values(), ids=REFUSED)
def test_rejected(frontend, request_, expected):
    assert shown(frontend.ask(request_)) == expected


def test_the_error_of_an_unsupported_encoding_lists_the_supported_ones(frontend):
    reply = frontend.ask(post(INFER, BODY, "Content-Encoding: br"))
    assert reply.header("Accept-Encoding") == "gzip, deflate"


@pytest.mark.parametrize(
    ("raised", "status"),
    [(not_found("gone"), 404), (unavailable("gone"), 503), (invalid_arg("gone"), 400)],
)
def test_a_models_error_is_plain_text(raised, status):
    reply = Frontend(served(VECTOR, answer=failing(raised))).ask(post(INFER, BODY))
    assert shown(reply) == (status, PLAIN, error("gone"))


def test_an_output_that_cannot_be_encoded_is_plain_text():
    half = answering(Y=np.zeros(2, np.float16))
    reply = Frontend(served(VECTOR, answer=half)).ask(post(INFER, BODY))
    assert shown(reply)[:2] == (400, PLAIN)
    assert b"sending FP16 data via JSON is not supported" in reply.body


def test_a_rejection_of_the_scheduler_is_json():
    def refuse(request):
        raise unavailable("stopping")

    reply = Frontend(served(VECTOR, answer=refuse)).ask(post(INFER, BODY))
    assert shown(reply) == (503, JSON, error("stopping"))


# -------------------------------------------------------------------------------------- defects


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


# ------------------------------------------------------------------------------------- inference


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


def test_json_in_and_out(frontend):
    reply = frontend.ask(post(INFER, BODY))
    assert (reply.status, reply.header("Content-Type"), reply.body) == (200, JSON, REPLY)
    assert reply.header("Inference-Header-Content-Length") is None


def test_binary_out(frontend):
    wanted = REQUEST | {"outputs": [{"name": "Y", "parameters": {"binary_data": True}}]}
    reply = frontend.ask(post(INFER, json.dumps(wanted).encode()))
    head = (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"Y","datatype":"FP32",'
        b'"shape":[2],"parameters":{"binary_data_size":8}}]}'
    )
    assert reply.head == (
        "HTTP/1.1 200 OK",
        f"Content-Type: {BINARY}",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(head) + 8}",
    )
    assert reply.body == head + ONE_TWO.tobytes()


def test_a_raw_request_is_answered_in_binary(frontend):
    reply = frontend.ask(post(INFER, bytes(12), "Inference-Header-Content-Length: 0"))
    assert reply.header("Content-Type") == BINARY
    assert reply.body.endswith(ONE_TWO.tobytes())


def test_the_request_has_version_and_times():
    model = served(VECTOR, version=3, answer=answering(Y=ONE_TWO))
    Frontend(model).ask(post(INFER, json.dumps(REQUEST | {"id": "q"}).encode()))
    (request,) = model.scheduler.requests
    assert (request.model_name, request.model_version, request.id) == ("m", 3, "q")
    assert request.received_ns == 42
    assert request.inputs["X"].array().tolist() == [1, 2]


def test_the_version_in_the_url_is_used():
    models = [served(VECTOR, version=version, answer=answering()) for version in (1, 3)]
    frontend = Frontend(*models)
    for path, version in (("", 3), ("/versions/1", 1), ("/versions/3", 3)):
        reply = frontend.ask(post(f"/v2/models/m{path}/infer", BODY))
        assert json.loads(reply.body)["model_version"] == str(version)


def test_classification_outputs_have_labels():
    model = served(VECTOR, answer=answering(Y=ONE_TWO), labels={"Y": ("cat", "dog")})
    wanted = REQUEST | {"outputs": [{"name": "Y", "parameters": {"classification": 1}}]}
    reply = Frontend(model).ask(post(INFER, json.dumps(wanted).encode()))
    assert json.loads(reply.body)["outputs"][0]["data"] == ["2.000000:1:dog"]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_compressed_body(frontend, coding, compress):
    assert frontend.ask(post(INFER, compress(BODY), f"Content-Encoding: {coding}")).body == REPLY


def test_the_header_length_of_a_compressed_body_counts_plain_bytes(frontend):
    entry = {"name": "X", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [entry]}).encode()
    reply = frontend.ask(
        post(
            INFER,
            gzip.compress(head + struct.pack("<2f", 1, 2)),
            "Content-Encoding: gzip",
            f"Inference-Header-Content-Length: {len(head)}",
        )
    )
    assert reply.body == REPLY


@pytest.mark.parametrize(
    ("coding", "decompress"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
def test_a_compressed_reply(frontend, coding, decompress):
    reply = frontend.ask(post(INFER, BODY, f"Accept-Encoding: {coding}"))
    assert reply.head[1:] == (
        f"Content-Type: {JSON}",
        f"Content-Encoding: {coding}",
        f"Content-Length: {len(reply.body)}",
    )
    assert decompress(reply.body) == REPLY


def test_the_header_length_of_a_compressed_reply_counts_plain_bytes(frontend):
    wanted = REQUEST | {"parameters": {"binary_data_output": True}}
    reply = frontend.ask(post(INFER, json.dumps(wanted).encode(), "Accept-Encoding: gzip"))
    plain = gzip.decompress(reply.body)
    length = int(reply.header("Inference-Header-Content-Length"))
    assert plain[length:] == ONE_TWO.tobytes()
    assert reply.head[2].startswith("Inference-Header-Content-Length: ")
    assert reply.head[3] == "Content-Encoding: gzip"


@pytest.mark.parametrize(
    "request_", [get("/v2", "Accept-Encoding: gzip"), post(INFER, b"{", "Accept-Encoding: gzip")]
)
def test_only_responses_are_compressed(frontend, request_):
    assert frontend.ask(request_).header("Content-Encoding") is None


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


def test_a_disconnected_client_does_not_cancel_answered_requests():
    model = served(VECTOR, answer=answering(Y=ONE_TWO))
    frontend = Frontend(model)
    frontend.exchange(post(INFER, BODY))
    frontend.client.leave()
    (request,) = model.scheduler.requests
    assert not request.cancellation.is_cancelled


def test_requests_of_one_client_are_answered_in_order(frontend):
    replies = frontend.ask_all(post(INFER, BODY) + get("/v2") + post(INFER, b"{"))
    assert [reply.status for reply in replies] == [200, 200, 500]


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
