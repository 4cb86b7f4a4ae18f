"""What the two profiles do differently, row by row, as docs/versions.md lists it.

2.51 is compared with the real server in tests/contract; what is said of newest is from source.
"""

import gzip
import json
import threading
import zlib

import numpy as np
import pytest
from server.support.model_folders import VECTOR, write_model
from tritonclient.grpc import service_pb2 as pb

from reference_server.testing import Code, ServerError, open_repository

TEXT = """
    input { name: "T" data_type: TYPE_STRING dims: [-1] }
    output { name: "T" data_type: TYPE_STRING dims: [-1] }
"""
TEXTS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
TWO = """
    input { name: "A" data_type: TYPE_FP32 dims: [-1] }
    input { name: "B" data_type: TYPE_FP32 dims: [-1] }
    output { name: "A" data_type: TYPE_FP32 dims: [-1] }
"""
SUM = TEXTS


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "vector")
    write_model(folder, "text", TEXT, TEXTS)
    write_model(folder, "two", TWO, SUM)
    return folder


@pytest.fixture(scope="module")
def newest(models):
    with open_repository(models) as repository:
        yield repository


@pytest.fixture(scope="module")
def proven(models):
    with open_repository(models, options=["--triton-version=2.51"]) as repository:
        yield repository


def post(repository, path, body=b"{}", **headers):
    """Status and body of the reply."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = repository.http("POST", path, body, named)
    return reply.status, reply.body.decode()


# ------------------------------------------------------------------------------- shared memory

DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)


@pytest.mark.parametrize("kind", ["system", "cuda"])
@pytest.mark.parametrize("verb", ["region/r/register", "region/r/unregister", "unregister"])
@pytest.mark.parametrize("body", [b"", b"{}", b"]"])
def test_clients_may_not_register_over_http(newest, kind, verb, body):
    said = post(newest, f"/v2/{kind}sharedmemory/{verb}", body)
    assert said == (501, f'{{"error":"{DISABLED}"}}')


@pytest.mark.parametrize("kind", ["System", "Cuda"])
@pytest.mark.parametrize("verb", ["Register", "Unregister"])
def test_clients_may_not_register_over_grpc(newest, kind, verb):
    request = getattr(pb, f"{kind}SharedMemory{verb}Request")(name="r")
    with pytest.raises(ServerError) as caught:
        newest.grpc(f"{kind}SharedMemory{verb}", request)
    assert (caught.value.code, caught.value.message) == (Code.UNSUPPORTED, DISABLED)


def test_what_is_registered_is_told_all_the_same(newest):
    reply = newest.http("GET", "/v2/systemsharedmemory/status")
    assert (reply.status, reply.body) == (200, b"[]")
    assert newest.http("GET", "/v2/systemsharedmemory/region/r/status").status == 404
    assert "system_shared_memory" in newest.http("GET", "/v2").json()["extensions"]


def test_in_2_51_clients_may_register(proven):
    assert post(proven, "/v2/systemsharedmemory/unregister")[0] == 200


# --------------------------------------------------------------------------------- who it is


def test_the_metadata_names_the_release(newest, proven):
    versions = [each.http("GET", "/v2").json()["version"] for each in (newest, proven)]
    assert versions == ["2.73.0", "2.51.0"]


# ------------------------------------------------------------------------ --http-max-input-size

CURE = "Use --http-max-input-size to increase the limit."
INFER = "/v2/models/vector/infer"
JSON = 'Use --http-max-input-size to increase the limit."}'


@pytest.fixture(scope="module", params=["newest", "2.51"])
def small(models, request):
    """A server that takes 200 bytes; the flag does the same in both."""
    options = [f"--triton-version={request.param}", "--http-max-input-size=200"]
    with open_repository(models, options=options) as repository:
        yield repository


def vector(count, data=None, **more):
    entry = {"name": "X", "datatype": "FP32", "shape": [count]}
    if data is not None:
        entry["data"] = data
    return {"inputs": [entry | more]}


def too_large(size):
    return {
        "error": f"request JSON size of {size} bytes exceeds the maximum allowed input size of 200 "
        f"bytes. {CURE}"
    }


@pytest.mark.parametrize(
    "path",
    [
        INFER,
        "/v2/models/vector/generate",
        "/v2/models/vector/generate_stream",
        "/v2/repository/index",
        "/v2/repository/models/vector/load",
        "/v2/repository/models/vector/unload",
        "/v2/trace/setting",
        "/v2/models/vector/trace/setting",
        "/v2/logging",
    ],
)
@pytest.mark.parametrize("size", [201, 100_000])
def test_json_of_more_bytes_is_refused(small, path, size):
    reply = small.http("POST", path, b"x" * size)
    assert (reply.status, reply.json()) == (400, too_large(size))
    assert reply.headers["Content-Type"] == "application/json"


def test_what_is_unknown_is_told_before_the_size(small):
    assert small.http("POST", "/v2/models/none/infer", b"x" * 999).status == 404
    assert small.http("GET", INFER, b"x" * 999).status == 405


def test_json_of_the_limit_is_read(small):
    text = json.dumps(vector(1, [1]))
    assert post(small, INFER, text.ljust(200).encode())[0] == 200
    assert post(small, INFER, text.ljust(201).encode())[0] == 400


def test_the_binary_part_is_not_limited(small):
    head = json.dumps(vector(5000, parameters={"binary_data_size": 20000})).encode()
    sizes = {"Inference_Header_Content_Length": str(len(head))}
    assert post(small, INFER, head + bytes(20000), **sizes)[0] == 200
    sizes = {"Inference_Header_Content_Length": "201"}
    reply = small.http("POST", INFER, head.ljust(201) + bytes(20000), _named(sizes))
    assert (reply.status, reply.json()) == (400, too_large(201))


def bystander_answers_during(repository, path, body, headers):
    """The attack's reply, and how many answers another client gets before that is there."""
    replies, answers = [], []

    def attack():
        replies.append(repository.http("POST", path, body, headers))

    attacker = threading.Thread(target=attack)
    attacker.start()
    question = json.dumps(vector(2, [1, 2])).encode()
    while not replies:
        answer = repository.http("POST", INFER, question)
        assert (answer.status, answer.json()["outputs"][0]["data"]) == (200, [1.0, 2.0])
        answers.append(answer)
    attacker.join()
    return replies[0], len(answers)


def test_a_bomb_of_compressed_zeros_holds_nobody_up(newest):
    bomb = zlib.compressobj(9)
    packed = b"".join([*(bomb.compress(bytes(1 << 20)) for _ in range(256)), bomb.flush()])
    reply, answers = bystander_answers_during(newest, INFER, packed, {"Content-Encoding": "gzip"})
    assert (reply.status, answers > 1) == (400, True)
    assert "Decompressed data size exceeds" in reply.json()["error"]


def test_long_json_holds_nobody_up(newest):
    body = json.dumps(vector(3_000_000, [0.5] * 3_000_000)).encode()
    reply, answers = bystander_answers_during(newest, INFER, body, {})
    assert (reply.status, answers > 1) == (200, True)


def _named(headers):
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.mark.parametrize(("size", "status"), [(200, 200), (204, 400), (40_000, 400)])
def test_a_raw_body_is_limited(small, size, status):
    reply = small.http("POST", INFER, bytes(size), {"Inference-Header-Content-Length": "0"})
    assert reply.status == status
    if status == 400:
        assert reply.json()["error"] == (
            f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"200 bytes. {CURE}"
        )


def test_a_tensor_in_json_is_limited_by_its_shape_whatever_data_comes(small):
    reply = small.http("POST", INFER, json.dumps(vector(51, [1])).encode())
    assert (reply.status, reply.json()["error"]) == (
        400,
        "JSON input 'X' has a byte_size (204 bytes) that exceeds the maximum allowed value of 200 "
        f"bytes. {CURE}",
    )


def test_the_inputs_of_generate_count_together(small):
    body = json.dumps({"A": [0] * 40, "B": [0] * 11}, separators=(",", ":")).encode()
    reply = small.http("POST", "/v2/models/two/generate", body)
    assert (reply.status, reply.json()["error"]) == (
        400,
        "request size of 160 bytes with input 'B' of size 44 bytes exceeds the maximum allowed "
        f"input size of 200. {CURE}",
    )


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(("size", "status"), [(200, 200), (201, 400), (1_000_000, 400)])
def test_what_a_compressed_body_becomes_is_limited(small, coding, size, status):
    text = json.dumps(vector(1, [1])).ljust(size).encode()
    packed = gzip.compress(text) if coding == "gzip" else zlib.compress(text)
    reply = small.http("POST", INFER, packed, {"Content-Encoding": coding})
    assert reply.status == status
    if status == 400:
        assert reply.headers["Content-Type"] == "text/plain"
        assert reply.json()["error"] == (
            f"Decompressed data size exceeds the maximum allowed value of 200 bytes. {CURE}"
        )


def test_by_default_the_newest_takes_64_mib_and_2_51_any_size(newest, proven):
    body = json.dumps(vector(16777217, [1])).encode()
    assert "byte_size (67108868 bytes)" in newest.http("POST", INFER, body).json()["error"]
    assert "Unable to parse 'data'" in proven.http("POST", INFER, body).json()["error"]


# ----------------------------------------------------------------------------- header lengths


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        (
            "99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            "[ -2147483648, 2147483647 ], got: 99999999999",
        ),
        ("-1", "inference header size should be in range (0, 8), got: -1"),
    ],
)
def test_a_header_length_is_a_number(newest, value, told):
    reply = newest.http("POST", INFER, bytes(8), {"Inference-Header-Content-Length": value})
    assert (reply.status, reply.json()["error"]) == (400, told)
    assert reply.headers["Content-Type"] == "text/plain"


def test_digits_at_its_beginning_are_enough(newest):
    body = json.dumps(vector(1, [1])).encode()
    length = f"{len(body)}abc"
    reply = newest.http("POST", INFER, body, {"Inference-Header-Content-Length": length})
    assert reply.status == 200


def test_in_2_51_what_is_no_number_is_0(proven):
    reply = proven.http("POST", INFER, bytes(8), {"Inference-Header-Content-Length": "abc"})
    assert reply.status == 200


# ----------------------------------------------------------------------- outputs named twice


def test_an_output_is_requested_once(newest, proven):
    body = vector(1, [1]) | {"id": "q", "outputs": [{"name": "Y"}, {"name": "Y"}]}
    reply = newest.http("POST", INFER, json.dumps(body).encode())
    told = "[request id: q] output 'Y' already exists in request"
    assert (reply.status, reply.json()) == (400, {"error": told})
    assert proven.http("POST", INFER, json.dumps(body).encode()).status == 200


# ------------------------------------------------------------------- codes of called models

ASKS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            request = pb_utils.InferenceRequest(
                model_name="gives_up", inputs=requests[0].inputs(), requested_output_names=[]
            )
            answers = request.exec(decoupled=True)
            next(answers)
            answers.cancel()
            return [pb_utils.InferenceResponse(error=next(answers).error()) for _ in requests]
"""
GIVES_UP = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                sender.send(pb_utils.InferenceResponse([]))
                while not sender.is_cancelled():
                    time.sleep(0.01)
                error = pb_utils.TritonError("given up", pb_utils.TritonError.CANCELLED)
                sender.send(pb_utils.InferenceResponse(error=error), flags=1)
"""


@pytest.mark.parametrize("host", ["inline", "process"])
def test_a_call_that_is_cancelled_reports_it(tmp_path, host):
    write_model(tmp_path, "asks", VECTOR, ASKS)
    decoupled = VECTOR + "model_transaction_policy { decoupled: true }"
    write_model(tmp_path, "gives_up", decoupled, GIVES_UP)
    codes = {}
    for version in ("newest", "2.51"):
        options = [f"--triton-version={version}", f"--backend-config=python,host={host}"]
        with open_repository(tmp_path, options=options) as repository:
            repository.load("gives_up")
            with pytest.raises(ServerError, match="given up") as error:
                repository.load("asks").infer({"X": np.zeros(1, np.float32)})
            codes[version] = error.value.code
    assert codes == {"newest": Code.CANCELLED, "2.51": Code.INTERNAL}
