"""A repository under test: the loaded models, and both frontends without ports."""

import json
import logging

import pytest
from server.support.model_folders import BROKEN, write_model
from tritonclient.grpc import service_pb2 as pb

from reference_server.testing import Code, ServerError, open_model, open_repository

BODY = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[2],"data":[1,2]}]}'


def infer_request(model, *numbers):
    request = pb.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="X", datatype="FP32", shape=[len(numbers)])
    tensor.contents.fp32_contents.extend(numbers)
    return request


def ready(repository):
    return [entry.name for entry in repository.index() if entry.state == "READY"]


def loaded(repository, name):
    return repository.http("GET", f"/v2/models/{name}/ready").status == 200


def test_a_model_loads_the_models_that_it_uses(folder):
    with open_model(folder / "pair") as pair:
        assert pair.infer({"I": [1]}).outputs["O"].tolist() == [1]


def test_models_are_loaded_and_unloaded(folder):
    with open_repository(folder, models=[]) as repository:
        model = repository.load("identity")
        assert model.infer({"X": [1]}).outputs["Y"].tolist() == [1]
        repository.unload("identity")
        with pytest.raises(ServerError):
            model.infer({"X": [1]})


def test_a_given_configuration_replaces_the_file(folder):
    with open_repository(folder, models=[]) as repository:
        config = repository.load("identity").config()
        other = repository.load("identity", config | {"max_batch_size": 2})
        assert other.config()["max_batch_size"] == 2
        assert other.infer({"X": [[1], [2]]}).outputs["Y"].tolist() == [[1], [2]]


def test_the_error_has_the_reasons_of_all_models(tmp_path):
    write_model(tmp_path, "broken", source=BROKEN)
    write_model(tmp_path, "typo", "max_batch: 1")
    with (
        pytest.raises(ServerError) as caught,
        open_repository(tmp_path, models=["broken", "typo", "missing"]),
    ):
        pass
    lines = caught.value.message.splitlines()
    assert lines[:2] == ["failed to load", "broken: Internal: RuntimeError: init no good"]
    assert [line.partition(":")[0] for line in lines[-2:]] == ["missing", "typo"]


def test_options_are_those_of_the_command_line(tmp_path):
    write_model(tmp_path, "good")
    write_model(tmp_path, "broken", source=BROKEN)
    with open_repository(tmp_path, options=["--exit-on-error=false", "--id=mine"]) as repository:
        assert repository.http("GET", "/v2").json()["name"] == "mine"
        assert not loaded(repository, "broken")


def test_http_requests_need_no_port(repository):
    reply = repository.http("POST", "/v2/models/identity/infer", BODY, {"Accept-Encoding": "gzip"})
    assert (reply.status, reply.headers["content-encoding"]) == (200, "gzip")
    reply = repository.http("POST", "/v2/models/identity/infer", BODY)
    assert reply.json()["outputs"][0]["data"] == [1, 2]
    assert reply.raw.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
    refused = repository.http("GET", "/v2/models/missing")
    assert (refused.status, list(refused.json())) == (404, ["error"])


def test_chunks_of_a_stream_are_joined(repository):
    body = json.dumps({"X": [1, 2]}).encode()
    reply = repository.http("POST", "/v2/models/streaming/generate_stream", body)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert reply.body.count(b"data: ") == 2


def test_grpc_methods_are_called_by_name(repository):
    answer = repository.grpc("ModelInfer", infer_request("identity", 1, 2))
    assert isinstance(answer, pb.ModelInferResponse)
    assert len(answer.raw_output_contents[0]) == 8
    assert repository.grpc("ServerMetadata", pb.ServerMetadataRequest()).name == "triton"
    with pytest.raises(ServerError) as caught:
        repository.grpc("ModelInfer", infer_request("missing", 1))
    assert caught.value.code is Code.NOT_FOUND


def test_log_lines_of_models_are_in_the_tests_log(tmp_path, caplog):
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.Logger.log_info("from " + args["model_name"])

            def execute(self, requests):
                raise RuntimeError
    """
    write_model(tmp_path, "talking", source=source)
    with caplog.at_level(logging.INFO, "reference_server.models"), open_model(tmp_path / "talking"):
        pass
    assert [record.getMessage() for record in caplog.records if "models" in record.name] == [
        "from talking"
    ]


def test_a_failed_load_reports_a_stub_without_a_model(tmp_path):
    write_model(tmp_path, "detector", 'backend: "tensorrt"')
    option = "--stub-model=detectro=stubs:f"
    with (
        pytest.raises(ServerError, match=r"hint: --stub-model=.*did you mean 'detector'\?"),
        open_repository(tmp_path, options=[option]),
    ):
        pass


def test_grpc_streams_return_all_responses(repository):
    requests = [infer_request("identity", 1), infer_request("streaming", 1, 2)]
    answers = repository.grpc_stream("ModelStreamInfer", requests)
    names = [answer.infer_response.model_name for answer in answers]
    assert sorted(names) == ["identity", "streaming", "streaming"]
