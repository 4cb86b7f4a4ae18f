"""A model's own `is_ready`: asked by releases from 26.03 on, and here; 2.51.0 does not know it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from contract.casebook import get
from contract.wire import exchange
from server.support.model_folders import VECTOR, write_model
from support.servers import Server, start_reference_server, start_tritonserver
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
FLAGS = {"allow_metrics": False}


def readiness(server: Server, model: str) -> bool:
    """What both frontends say of a model."""
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
    with start_reference_server(repository, **FLAGS) as server:
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


def test_an_ensemble_is_as_ready_as_its_models(reference: tuple[Server, Path]):
    server, repository = reference
    assert not readiness(server, "whole")
    (repository / "inline" / "ready").touch()
    assert readiness(server, "whole")
    (repository / "inline" / "ready").unlink()


def test_the_server_is_ready_whatever_models_say(reference: tuple[Server, Path]):
    server, _ = reference
    (reply,) = exchange(server.http, get("/v2/health/ready")).replies
    assert reply.status == 200


@pytest.mark.oracle
def test_the_real_server_does_not_ask(tmp_path: Path, oracle_installed: None):
    write_model(tmp_path, "inline", VECTOR, TELLING)
    with start_tritonserver(tmp_path, **FLAGS) as server:
        assert readiness(server, "inline")
