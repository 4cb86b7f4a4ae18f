"""A model's `is_ready`, which releases from 26.03 on call, and 2.51.0 does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
from contract.casebook import get
from contract.wire import exchange
from server.support.model_folders import VECTOR, write_model
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

#: Ready while a file lies in its folder.
TELLING = """
    from pathlib import Path

    class TritonPythonModel:
        def initialize(self, args):
            self.told = Path(args["model_repository"]) / "ready"

        def is_ready(self):
            return self.told.exists()
"""
IN_A_PROCESS = 'parameters { key: "EXECUTION_HOST" value { string_value: "process" } }'
CHAIN = """
    platform: "ensemble"
    input { name: "I" data_type: TYPE_FP32 dims: [-1] }
    output { name: "O" data_type: TYPE_FP32 dims: [-1] }
    ensemble_scheduling { step { model_name: "inline" model_version: -1
        input_map { key: "X" value: "I" } output_map { key: "Y" value: "O" } } }
"""
FLAGS = COMPLETE | {"allow_metrics": False}
Start = Callable[..., AbstractContextManager[Server]]


def readiness(server: Server, model: str) -> bool:
    """Return both frontends' readiness of a model."""
    (reply,) = exchange(server.http, get(f"/v2/models/{model}/ready")).replies
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        ready: bool = stub.ModelReady(pb.ModelReadyRequest(name=model), timeout=30).ready
    if ready:
        assert (reply.status, reply.body) == (200, b"")
    else:
        assert (reply.status, reply.body) == (400, b'{"error":"Model version not ready"}')
    return ready


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    repository = tmp_path_factory.mktemp("telling")
    write_model(repository, "inline", VECTOR, TELLING)
    write_model(repository, "process", VECTOR + IN_A_PROCESS, TELLING)
    write_model(repository, "whole", CHAIN, None)
    # As its models say, the server is not ready at first.
    with start_reference_server(
        repository, ready_path="/v2/health/live", triton_version="newest", **FLAGS
    ) as server:
        yield server, repository


@pytest.mark.parametrize("model", ["inline", "process"])
def test_a_model_says_whether_it_is_ready(reference: tuple[Server, Path], model: str):
    server, repository = reference
    told = repository / model / "ready"
    assert not readiness(server, model)
    told.touch()
    assert readiness(server, model)
    told.unlink()
    assert not readiness(server, model)


def test_an_ensemble_is_ready_whatever_its_models_say(reference: tuple[Server, Path]):
    server, _ = reference
    assert not readiness(server, "inline")
    assert readiness(server, "whole")


def test_the_server_is_as_ready_as_its_models(reference: tuple[Server, Path]):
    server, repository = reference

    def ready() -> int:
        (reply,) = exchange(server.http, get("/v2/health/ready")).replies
        return reply.status

    assert ready() == 400
    (repository / "inline" / "ready").touch()
    assert ready() == 400
    (repository / "process" / "ready").touch()
    assert ready() == 200


@pytest.mark.oracle
@pytest.mark.parametrize("start", [start_tritonserver, start_reference_server])
def test_2_51_does_not_ask(tmp_path: Path, oracle_installed: None, start: Start):
    write_model(tmp_path, "inline", VECTOR, TELLING)
    with start(tmp_path, **FLAGS) as server:
        assert readiness(server, "inline")
