"""The end and the readiness of servers: the real server and the reference server."""

from __future__ import annotations

import os
import queue
import re
import select
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from contract.casebook import get, infer, post, tensor
from contract.conftest import LIVE
from contract.probes import write_probes
from contract.scheduler_scripts import Play, write
from contract.wire import ConnectionEnded, connect, exchange, read_reply
from server.support.model_folders import BROKEN, VECTOR, write_model
from support.servers import (
    COMPLETE,
    Flag,
    Server,
    ServerFailed,
    start_reference_server,
    start_tritonserver,
)
from support.waiting import PATIENCE_SECONDS, until
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

Start = Callable[..., AbstractContextManager[Server]]
SHORT = COMPLETE | {"allow_grpc": False, "allow_metrics": False, "exit_timeout_secs": 1}
#: More time than a slow machine needs.
LONG = COMPLETE | {"exit_timeout_secs": 120}
EXPIRED = "failed to stop server: Internal - Exit timeout expired. Exiting immediately."

#: Records that it is finalized.
FINALIZING = """
    from pathlib import Path

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = Path(args["model_repository"])

        def finalize(self):
            (self.folder / "finalized").touch()
"""
STAYING = """
    import threading

    class TritonPythonModel:
        def finalize(self):
            threading.Event().wait()
"""
#: Sends one response to each request, without the final flag.
OPEN_ENDED = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.senders = []

        def execute(self, requests):
            for request in requests:
                self.senders.append(request.get_response_sender())
                self.senders[-1].send(pb_utils.InferenceResponse([]))
"""
#: Fails to load until it has been tried for the third time.
THIRD_TIME = """
    from pathlib import Path

    class TritonPythonModel:
        def initialize(self, args):
            tries = Path(args["model_repository"]) / "tries"
            tries.mkdir(exist_ok=True)
            (tries / str(count := len(list(tries.iterdir())) + 1)).touch()
            if count < 3:
                raise RuntimeError(f"try {count}")
"""
DECOUPLED = VECTOR + "model_transaction_policy { decoupled: true }"
X = tensor("X", "FP32", [1], [1])
ROW = tensor("X", "FP32", [1, 1], [1])


@pytest.fixture(
    params=[
        pytest.param(start_tritonserver, marks=pytest.mark.oracle, id="tritonserver"),
        pytest.param(start_reference_server, id="reference server"),
    ]
)
def start(request: pytest.FixtureRequest) -> Start:
    """Return the starter of each server."""
    if request.param is start_tritonserver:
        request.getfixturevalue("oracle_installed")
    starter: Start = request.param
    return starter


def terminate(server: Server, stage: str) -> None:
    """Terminate a server, and wait until its log reports this stage."""
    server.process.send_signal(signal.SIGTERM)
    until(lambda: stage in server.log)


def ended(server: Server) -> int:
    """Wait for the server's end, and return its exit code."""
    return server.process.wait(PATIENCE_SECONDS)


def bytes_of_a_new_connection(address: str) -> bytes:
    """Return the response on a new connection."""
    try:
        with connect(address) as connection:
            connection.sendall(get(LIVE))
            return connection.recv(1)
    except (ConnectionResetError, BrokenPipeError, ConnectionRefusedError):
        return b""


# ----------------------------------------------------------------------------------- in flight


def test_what_runs_and_what_waits_is_answered(tmp_path: Path, start: Start):
    write(tmp_path, {"alone": "max_batch_size: 1"})
    with start(tmp_path, **LONG) as server:
        playing = Play(server, tmp_path, "alone")
        playing.hold("runs")
        playing.wait("waits")
        with connect(server.http) as connection, connection.makefile("rb") as stream:
            connection.sendall(infer("alone", ROW, id="waits-too"))
            playing.until(playing.pending, 2)
            terminate(server, "Found 1 HTTP service connections")
            assert bytes_of_a_new_connection(server.http) == b""
            playing.go("runs", "waits", "waits-too")
            playing.answered("runs", "waits")
            assert read_reply(stream).status == 200
        assert ended(server) == 0
        playing.close()
        assert "successfully unloaded 'alone' version 1" in server.log
    assert playing.outcome.answers == {"runs": "", "waits": ""}


SERVES_OPEN: dict[Start, dict[str, Flag]] = {start_reference_server: {"exit_closes_idle": False}}


def test_open_connections_are_served_until_their_clients_close_them(tmp_path: Path, start: Start):
    write_model(tmp_path, "m")
    flags = LONG | {"allow_grpc": False, "allow_metrics": False} | SERVES_OPEN.get(start, {})
    with start(tmp_path, **flags) as server:
        with connect(server.http) as connection, connection.makefile("rb") as stream:
            for _ in range(3):
                connection.sendall(infer("m", X))
                assert read_reply(stream).status == 200
                if "Found 1 HTTP" not in server.log:
                    terminate(server, "Found 1 HTTP service connections")
            assert bytes_of_a_new_connection(server.http) == b""
        assert ended(server) == 0


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_open_sequences_go_on_while_new_ones_are_refused(
    tmp_path: Path, start: Start, strategy: str
):
    patience = "max_sequence_idle_microseconds: 600000000"
    write_model(tmp_path, "m", f"{VECTOR} sequence_batching {{ {strategy} {{ }} {patience} }}")
    with (
        start(tmp_path, **LONG, allow_metrics=False) as server,
        triton.InferenceServerClient(server.grpc) as client,
    ):
        x = triton.InferInput("X", [1], "FP32")
        x.set_data_from_numpy(np.zeros(1, np.float32))
        client.infer("m", [x], sequence_id=1, sequence_start=True)
        terminate(server, "Model 'm' (version 1) has 1 in-flight inferences")
        client.infer("m", [x], sequence_id=1)
        with pytest.raises(triton.InferenceServerException) as refused:
            client.infer("m", [x], sequence_id=2, sequence_start=True)
        assert refused.value.message() == (
            "Server is stopping, scheduler for model has stopped accepting new inference requests"
        )
        client.infer("m", [x], sequence_id=1, sequence_end=True)
        assert ended(server) == 0


#: Returns its input after the file `go` exists.
HELD = """
    import time
    from pathlib import Path

    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = Path(args["model_repository"])

        def execute(self, requests):
            (self.folder / "begun").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.01)
            sent = [pb_utils.get_input_tensor_by_name(each, "X").as_numpy() for each in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each)]) for each in sent]
"""
#: Two steps, `held` and then `free`.
CHAIN = """
    platform: "ensemble"
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
    ensemble_scheduling {
      step {
        model_name: "held" model_version: -1
        input_map { key: "X" value: "X" }
        output_map { key: "Y" value: "Z" }
      }
      step {
        model_name: "free" model_version: -1
        input_map { key: "X" value: "Z" }
        output_map { key: "Y" value: "Y" }
      }
    }
"""
STOPPED = (
    "[request id: late] Server is stopping, scheduler for model has stopped accepting new "
    "inference requests"
)


def asked(call: Callable[[], object]) -> str:
    """Return a call's error or its response."""
    try:
        return str(call()).strip()
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()}"


def message(model: str, id: str) -> pb.ModelInferRequest:
    """Return a request with one number."""
    request = pb.ModelInferRequest(model_name=model, id=id, raw_input_contents=[bytes(4)])
    request.inputs.add(name="X", datatype="FP32", shape=[1])
    return request


def test_clients_hear_that_a_server_stops_while_an_ensemble_is_on_its_way(
    tmp_path: Path, start: Start
):
    write_model(tmp_path, "held", source=HELD)
    write_model(tmp_path, "free")
    write_model(tmp_path, "chain", CHAIN, "")
    with (
        start(tmp_path, **LONG) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        streamed: queue.SimpleQueue[pb.ModelInferRequest | None] = queue.SimpleQueue()
        stream = stub.ModelStreamInfer(iter(streamed.get, None))
        streamed.put(message("free", "early"))
        assert next(stream).infer_response.id == "early"
        on_its_way = stub.ModelInfer.future(message("chain", "on its way"))
        until((tmp_path / "held" / "begun").exists)
        terminate(server, "Model 'chain' (version 1) has 1 in-flight inferences")
        assert "Found 1 model versions that have in-flight inferences" in server.log
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        said = {
            "live": asked(lambda: stub.ServerLive(pb.ServerLiveRequest())),
            "ready": asked(lambda: stub.ServerReady(pb.ServerReadyRequest())),
            "check": asked(lambda: health(b"")),
            "model": asked(lambda: stub.ModelReady(pb.ModelReadyRequest(name="free"))),
            "metadata": asked(lambda: stub.ModelMetadata(pb.ModelMetadataRequest(name="free"))),
            "config": stub.ModelConfig(pb.ModelConfigRequest(name="free")).config.name,
            "statistics": asked(lambda: stub.ModelStatistics(pb.ModelStatisticsRequest())),
            "index": asked(lambda: stub.RepositoryIndex(pb.RepositoryIndexRequest())),
            "free": asked(lambda: stub.ModelInfer(message("free", "late"))),
            "chain": asked(lambda: stub.ModelInfer(message("chain", "late"))),
            "nobody": asked(lambda: stub.ModelInfer(message("nobody", "late"))),
        }
        streamed.put(message("free", "late"))
        said["stream"] = next(stream).error_message
        streamed.put(None)
        assert list(stream) == []
        assert exchange(server.metrics, get("/metrics")).replies[0].status == 200
        with pytest.raises(ConnectionRefusedError):
            connect(server.http)
        (tmp_path / "held" / "go").touch()
        said["on its way"] = asked(on_its_way.result)
        assert ended(server) == 0
    exiting, not_ready = "UNAVAILABLE Server exiting", "UNAVAILABLE Server not ready"
    assert said == {
        **dict.fromkeys(("live", "ready", "check"), exiting),
        **dict.fromkeys(("model", "metadata", "statistics", "index"), not_ready),
        "config": "free",
        "free": f"UNAVAILABLE {STOPPED}",
        "chain": f"UNAVAILABLE in ensemble 'chain', {STOPPED}",
        "nobody": "NOT_FOUND Request for unknown model: 'nobody' is not found",
        "stream": STOPPED,
        "on its way": f"UNAVAILABLE in ensemble 'chain', {STOPPED.replace('late', 'on its way')}",
    }


def test_a_model_that_is_unloaded_has_no_version_while_it_answers(tmp_path: Path, start: Start):
    write_probes(tmp_path, "held")
    with (
        start(tmp_path, **LONG) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        on_its_way = stub.ModelInfer.future(message("held", "on its way"))
        until((tmp_path / "held" / "begun").exists)
        terminate(server, "Found 1 live models")
        assert "Found 0 model versions that have in-flight inferences" in server.log
        late = asked(lambda: stub.ModelInfer(message("held", "late")))
        live = asked(lambda: stub.ServerLive(pb.ServerLiveRequest()))
        (tmp_path / "held" / "go").touch()
        assert on_its_way.result().id == "on its way"
        assert ended(server) == 0
    assert late == "NOT_FOUND Request for unknown model: 'held' has no available versions"
    assert live == "UNAVAILABLE Server exiting"


# -------------------------------------------------------------------------------- what hangs


def test_a_request_that_is_never_answered_does_not_keep_a_server(tmp_path: Path, start: Start):
    write_probes(tmp_path, "held")
    with start(tmp_path, **SHORT) as server, connect(server.http) as connection:
        connection.sendall(infer("held", X))
        until((tmp_path / "held" / "begun").exists)
        server.process.send_signal(signal.SIGTERM)
        assert ended(server) == 1
        with connection.makefile("rb") as stream, pytest.raises((ConnectionEnded, OSError)):
            read_reply(stream)
        assert EXPIRED in server.log


#: Holds the interpreter's lock after the file `go` exists.
HOLDING = """
    import ctypes
    import time
    from pathlib import Path

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = Path(args["model_repository"])

        def execute(self, requests):
            while not (self.folder / "go").exists():
                time.sleep(0.001)
            ctypes.PyDLL(None).sleep(600)
"""


def test_a_model_that_keeps_the_interpreter_to_itself_does_not_keep_a_server(tmp_path: Path):
    write_model(tmp_path, "holding", VECTOR, HOLDING)
    flags = SHORT | {"exit_timeout_secs": 3}
    with start_reference_server(tmp_path, **flags) as server, connect(server.http) as connection:
        connection.sendall(infer("holding", X) * 40)  # what waits behind it makes no difference
        terminate(server, "Found 1 HTTP service connections")
        (tmp_path / "holding" / "go").touch()
        assert ended(server) == 1
        assert EXPIRED not in server.log
        assert "Timeout (0:00:04)!" in server.log
        assert re.search(r'holding/1/model\.py", line \d+ in execute', server.log)


#: Records its process id, and stops its process.
STANDING = """
    import os, signal
    from pathlib import Path

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = Path(args["model_repository"])

        def execute(self, requests):
            (self.folder / "pid").write_text(str(os.getpid()))
            (self.folder / "begun").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_process_that_stands_still_keeps_no_server_and_ends_with_it(tmp_path: Path):
    # The real server leaves the process running.
    folder = write_model(tmp_path, "standing", VECTOR, STANDING)
    flags = SHORT | {"backend_config": "python,host=process"}
    with start_reference_server(tmp_path, **flags) as server, connect(server.http) as connection:
        connection.sendall(infer("standing", X) * 2)
        until((folder / "begun").exists)
        process = os.pidfd_open(int((folder / "pid").read_text()))
        server.process.send_signal(signal.SIGTERM)
        assert ended(server) == 1
        assert EXPIRED in server.log
        assert select.select([process], [], [], PATIENCE_SECONDS)[0]
        os.close(process)


def test_models_are_finalized_beside_those_that_hang(tmp_path: Path):
    # The real server finalizes nothing while it waits for a request, and waits for a stream that
    # does not end far beyond its timeout.
    write_probes(tmp_path, "held")
    write_model(tmp_path, "open_ended", DECOUPLED, OPEN_ENDED)
    write_model(tmp_path, "staying", VECTOR, STAYING)
    others = [write_model(tmp_path, name, VECTOR, FINALIZING) for name in ("first", "second")]
    flags = SHORT | {"allow_grpc": True, "exit_timeout_secs": 4}
    with start_reference_server(tmp_path, **flags) as server, connect(server.http) as connection:
        connection.sendall(infer("held", X))
        until((tmp_path / "held" / "begun").exists)
        with grpc.insecure_channel(server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = pb.ModelInferRequest(model_name="open_ended")
            request.inputs.add(name="X", datatype="FP32", shape=[1])
            request.raw_input_contents.append(bytes(4))
            answers = stub.ModelStreamInfer(iter([request]))
            assert next(answers).error_message == ""
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError):
                next(answers)
            assert ended(server) == 1
        assert "Found 1 GRPC service connections" in server.log
        assert "Found 5 live models" in server.log
        assert "Found 3 live models" in server.log
        assert EXPIRED in server.log
    assert all((folder / "finalized").exists() for folder in others)


# ---------------------------------------------------------------------------------- readiness


@pytest.mark.parametrize("strict", [True, False])
def test_a_server_whose_model_failed_is_ready_if_it_need_not_be_strict(
    tmp_path: Path, start: Start, strict: bool
):
    write_model(tmp_path, "good")
    write_model(tmp_path, "broken", source=BROKEN)
    flags: dict[str, Flag] = {"exit_on_error": False, "strict_readiness": strict}
    with start(tmp_path, ready_path=LIVE, allow_metrics=False, **flags) as server:
        paths = ("/v2/health/live", "/v2/health/ready", "/v2/models/good/ready")
        replies = [exchange(server.http, get(path)).replies[0] for path in paths]
        ready = 400 if strict else 200
        assert [(reply.status, reply.body) for reply in replies] == [
            (200, b""),
            (ready, b""),
            (200, b""),
        ]
        with grpc.insecure_channel(server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerReady(pb.ServerReadyRequest()).ready is not strict


def test_a_model_that_fails_ends_a_server_that_may_not_go_on(tmp_path: Path, start: Start):
    folder = write_model(tmp_path, "good", VECTOR, FINALIZING)
    write_model(tmp_path, "broken", source=BROKEN)
    with (
        pytest.raises(ServerFailed) as failed,
        start(tmp_path, ready_path=LIVE, **SHORT | {"exit_timeout_secs": 10}),
    ):
        pytest.fail("the server started with a model that failed")
    text = str(failed.value)
    assert "ended with exit code 1" in text
    assert "successfully unloaded 'good' version 1" in text
    assert text.rstrip().endswith("error: creating server: Internal - failed to load all models")
    assert (folder / "finalized").exists()


NOT_READY = (503, '{"error":"Server not ready"}')
#: Requests to a server without a repository, and its answers.
ASKED_WITHOUT_REPOSITORY = {
    get("/v2/health/live"): (400, ""),
    get("/v2/health/ready"): (400, ""),
    get("/v2"): (200, None),
    get("/v2/logging"): (200, None),
    get("/v2/trace/setting"): (200, None),
    post("/v2/trace/setting", '{"trace_rate": "5"}'): (200, None),
    get("/v2/systemsharedmemory/status"): (200, "[]"),
    get("/v2/cudasharedmemory/status"): (200, "[]"),
    post("/v2/systemsharedmemory/unregister", ""): (200, ""),
    **dict.fromkeys(
        (
            get("/v2/models/m"),
            get("/v2/models/m/ready"),
            get("/v2/models/m/config"),
            get("/v2/models/m/stats"),
            get("/v2/models/stats"),
            get("/v2/models/m/trace/setting"),
            infer("m", X),
            post("/v2/models/m/infer", "{"),
            post("/v2/models/m/generate", "{}"),
            post("/v2/models/m/generate_stream", "{}"),
            post("/v2/repository/index", ""),
            post("/v2/repository/r/index", ""),
            post("/v2/repository/models/m/load", ""),
            post("/v2/repository/models/m/unload", ""),
        ),
        NOT_READY,
    ),
    post("/v2/repository/r/models/m/load", ""): (501, None),
    post("/v2/repository/models/m/load", '{"parameters": {"x": 1}}'): (500, None),
    get("/v2/models/m/versions/x"): (404, None),
}


@pytest.mark.parametrize(
    ("mode", "is_file", "reason"),
    [
        ("none", False, "Internal: failed to stat file "),
        ("explicit", True, "Invalid argument: repository path is not a valid directory"),
    ],
)
def test_a_server_without_a_repository_says_that_it_is_not_ready(
    tmp_path: Path, start: Start, mode: str, is_file: bool, reason: str
):
    repository = tmp_path / "repository"
    if is_file:
        repository.touch()
    flags: dict[str, Flag] = {"exit_on_error": False, "model_control_mode": mode}
    with start(repository, ready_path="/v2", **flags) as server:
        replies = {
            request: exchange(server.http, request).replies[0]
            for request in ASKED_WITHOUT_REPOSITORY
        }
        assert {request: reply.status for request, reply in replies.items()} == {
            request: status for request, (status, _) in ASKED_WITHOUT_REPOSITORY.items()
        }
        assert all(
            text in (None, replies[request].body.decode())
            for request, (_, text) in ASKED_WITHOUT_REPOSITORY.items()
        )
        with grpc.insecure_channel(server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert not stub.ServerLive(pb.ServerLiveRequest()).live
            assert not stub.ServerReady(pb.ServerReadyRequest()).ready
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x02"
            assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "triton"
            said = [
                asked(lambda: stub.ModelInfer(message("m", ""))),
                asked(lambda: stub.ModelReady(pb.ModelReadyRequest(name="m"))),
                asked(lambda: stub.RepositoryIndex(pb.RepositoryIndexRequest())),
                asked(lambda: stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest())),
            ]
            assert set(said) == {"UNAVAILABLE Server not ready"}
            assert [
                answer.error_message for answer in stub.ModelStreamInfer(iter([message("m", "")]))
            ] == ["Server not ready"]
        server.process.send_signal(signal.SIGTERM)
        assert ended(server) == 0
        assert reason in server.log


@pytest.mark.parametrize("retries", [1, 2])
def test_a_model_is_tried_again_as_often_as_is_asked(tmp_path: Path, start: Start, retries: int):
    write_model(tmp_path, "late", VECTOR, THIRD_TIME)
    flags = SHORT | {"exit_on_error": False, "model_load_retry_count": retries}
    with start(tmp_path, ready_path=LIVE, **flags) as server:
        reply = exchange(server.http, get("/v2/models/late/ready")).replies[0]
        assert reply.status == (200 if retries == 2 else 400)
        assert server.log.count("failed to load 'late' version 1: ") == 2
        assert server.log.count("loading: late:1") == 1
