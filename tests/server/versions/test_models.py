"""Loading, readiness and calls of models, in both profiles: rows of docs/versions.md.

tests/contract compares 2.51 with the real server; the rows of newest are from Triton's sources.
"""

import json

import numpy as np
import pytest
from server.support.model_folders import VECTOR, write_model
from tritonclient.grpc import service_pb2 as pb

from reference_server.testing import Code, ServerError, open_repository


@pytest.mark.parametrize("body", ['{"ready":1}', '{"ready":"x"}', '{"ready":null}'])
def test_ready_of_the_index_must_be_a_boolean(newest, body):
    reply = newest.http("POST", "/v2/repository/index", body.encode())
    expected = "Invalid value for 'ready': expected a boolean"
    assert (reply.status, reply.json()) == (400, {"error": expected})


def test_an_unload_request_must_be_json(newest, proven):
    path = "/v2/repository/models/none/unload"
    assert newest.http("POST", path, b"{").status == 500
    assert newest.http("POST", path, b"").status == 200
    wrong = b'{"parameters":{"unload_dependents":"x"}}'
    assert newest.http("POST", path, wrong).status == 200
    assert proven.http("POST", path, b"{").status == 200


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "Model name cannot be empty. Please enter a valid name to deploy."),
        (" \t", "Model name cannot be empty. Please enter a valid name to deploy."),
        ("..", "invalid model name '..', model name must not contain path traversal characters"),
        ("a/b", "invalid model name 'a/b', model name must not contain path traversal characters"),
        ("a..b", "failed to load 'a..b', failed to poll from model repository"),
    ],
)
def test_names_of_models_must_not_be_paths(newest, name, expected):
    with pytest.raises(ServerError) as caught:
        newest.grpc("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name=name))
    assert caught.value.message == expected


@pytest.mark.parametrize("version", ["newest", "2.51"])
@pytest.mark.parametrize("form", ["path", "link"])
def test_labels_are_read_only_within_the_model(tmp_path, version, form):
    (tmp_path / "secret").write_text("s3cret")
    file = "../../secret"
    folder = tmp_path / "models" / "m"
    config = VECTOR.replace('"Y"', '"Y" label_filename: "%s"' % (file if form == "path" else "l"))
    write_model(tmp_path / "models", "m", config)
    if form == "link":
        (folder / "l").symlink_to(tmp_path / "secret")
    options = [f"--triton-version={version}"]
    with open_repository(tmp_path / "models", models=[], options=options) as repository:
        reply = repository.http("POST", "/v2/repository/models/m/load")
        path = f"{folder}/{file if form == 'path' else 'l'}"
        assert (reply.status, reply.json()["error"]) == (
            400,
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Unsupported: label file "
            f"path '{path}' for output 'Y' in model 'm' is outside model directory;\n",
        )


@pytest.mark.brute_force
@pytest.mark.parametrize("name", ["a;b", "a$(b)"])
def test_names_of_models_must_not_be_commands(tmp_path, name):
    write_model(tmp_path, name)
    write_model(tmp_path, "a b.c-d_e")
    with open_repository(tmp_path, models=["a b.c-d_e"]) as repository:
        with pytest.raises(ServerError) as caught:
            repository.load(name)
        expected = "Invalid argument: Invalid stub name: contains invalid characters;\n"
        assert caught.value.message.endswith(expected)
    with open_repository(tmp_path, models=[name], options=["--triton-version=2.51"]):
        pass


MOST = 2**63 - 1
LARGE = "dims: [4611686018427387904, 2]"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            VECTOR.replace("dims: [-1]", LARGE, 1),
            f"element count for tensor 'X' exceeds maximum size of {MOST}",
        ),
        (
            VECTOR.replace("dims: [-1]", f"{LARGE} reshape {{ shape: [2, 4611686018427387904] }}"),
            f"element count for tensor 'X dims' exceeds maximum size of {MOST}",
        ),
    ],
)
def test_sizes_of_a_configuration_must_fit_64_bits(tmp_path, config, expected):
    write_model(tmp_path, "m", config)
    free = VECTOR.replace("[-1]", "[4611686018427387904, 2, -1]", 1)
    write_model(tmp_path, "free", LARGE.join(free.rsplit("dims: [-1]", 1)))
    with open_repository(tmp_path, models=["free"]) as repository:
        with pytest.raises(ServerError) as caught:
            repository.load("m")
        assert expected in caught.value.message
    with open_repository(tmp_path, models=["m"], options=["--triton-version=2.51"]):
        pass


def test_models_decide_whether_they_and_the_server_are_ready(newest, proven, models):
    mark = models / "moody" / "moody"

    def ready(repository):
        paths = ["/v2/models/moody/ready", "/v2/health/ready"]
        return [repository.http("GET", path).status for path in paths]

    assert ready(newest) == [200, 200]
    mark.touch()
    try:
        assert ready(newest) == [400, 400]
        assert newest.http("GET", "/v2/health/live").status == 200
        assert not newest.grpc("ServerReady", pb.ServerReadyRequest()).ready
        assert ready(proven) == [200, 200]
        expected = "INTERNAL: Model moody - Error when running inference: Failed for execute the"
        assert expected in answer_to(newest, "ask moody")
        assert answer_to(newest, "ready moody") == "False"
    finally:
        mark.unlink()
    assert ready(newest) == [200, 200]


def answer_to(repository, text):
    """Return the answer of the model `asks`."""
    entry = {"name": "T", "datatype": "BYTES", "shape": [1], "data": [text]}
    reply = repository.http(
        "POST", "/v2/models/asks/infer", json.dumps({"inputs": [entry]}).encode()
    )
    return reply.json()["outputs"][0]["data"][0]


def test_models_receive_the_codes_of_errors(newest, proven):
    assert answer_to(newest, "ask fails") == "__ErrorCode.NOT_FOUND: no such thing"
    assert answer_to(proven, "ask fails") == "__ErrorCode.INTERNAL: no such thing"


ASKS_ON = """
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


@pytest.mark.brute_force
@pytest.mark.parametrize("host", ["inline", "process"])
def test_a_call_that_is_cancelled_reports_it(tmp_path, host):
    write_model(tmp_path, "asks", VECTOR, ASKS_ON)
    decoupled = VECTOR + "model_transaction_policy { decoupled: true }"
    write_model(tmp_path, "gives_up", decoupled, GIVES_UP)
    with open_repository(tmp_path, options=[f"--backend-config=python,host={host}"]) as repository:
        repository.load("gives_up")
        with pytest.raises(ServerError, match="given up") as error:
            repository.load("asks").infer({"X": np.zeros(1, np.float32)})
        assert error.value.code is Code.CANCELLED


NEWER_CALLS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils
    import c_python_backend_utils as native

    def outcome(call):
        try:
            return str(call())
        except Exception as error:
            return type(error).__name__

    class TritonPythonModel:
        def execute(self, requests):
            answers = pb_utils.InferenceRequest(
                model_name="answers", inputs=requests[0].inputs(), requested_output_names=[]
            ).exec(decoupled=True)
            answer = next(answers)
            made = pb_utils.InferenceResponse([])
            calls = {
                "given": lambda: pb_utils.InferenceResponse([], parameters={"a": 1}).parameters(),
                "third": lambda: pb_utils.InferenceResponse([], None, {"a": 1}).parameters(),
                "made": lambda: made.parameters(),
                "received": lambda: answer.parameters(),
                "cancel": lambda: answers.cancel(),
                "classes": lambda: [
                    isinstance(answer, pb_utils.InferenceResponse),
                    isinstance(answers, native.ResponseIterator),
                    pb_utils.InferenceResponse is native.InferenceResponse,
                    type(made).__name__, type(answers).__name__,
                ],
            }
            outcomes = {name: outcome(call) for name, call in calls.items()}
            rows = np.array([f"{name}={text}" for name, text in outcomes.items()], object)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("U", rows)]) for _ in requests]
"""
ANSWERS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                request.get_response_sender().send(pb_utils.InferenceResponse([]), flags=1)
"""
CLASSES = "[True, True, True, 'InferenceResponse', 'ResponseIterator']"
NEWER = {
    "newest": {
        "given": '{"a": 1}',
        "third": '{"a": 1}',
        "made": "{}",
        "received": "{}",
        "cancel": "None",
        "classes": CLASSES,
    },
    "2.51": {
        "given": "TypeError",
        "third": "TypeError",
        "made": "AttributeError",
        "received": "AttributeError",
        "cancel": "AttributeError",
        "classes": CLASSES,
    },
}


@pytest.mark.brute_force
@pytest.mark.parametrize("host", ["inline", "process"])
@pytest.mark.parametrize("version", NEWER)
def test_models_see_the_api_of_their_release(tmp_path, host, version):
    text = VECTOR.replace("TYPE_FP32 dims", "TYPE_STRING dims", 2).replace('"Y"', '"U"')
    write_model(tmp_path, "asks", text, NEWER_CALLS)
    decoupled = text + "model_transaction_policy { decoupled: true }"
    write_model(tmp_path, "answers", decoupled, ANSWERS)
    options = [f"--triton-version={version}", f"--backend-config=python,host={host}"]
    with open_repository(tmp_path, options=options) as repository:
        repository.load("answers")
        expected = repository.load("asks").infer({"X": np.array([b"x"], object)}).outputs["U"]
        assert dict(row.decode().split("=", 1) for row in expected) == NEWER[version]
