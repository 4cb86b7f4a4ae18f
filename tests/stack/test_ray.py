"""A model repository on Ray Serve: a cluster of two nodes on this machine, by `serve run`."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from contract.wire import exchange
from google.protobuf.message import Message
from support.ray_nodes import ENVIRONMENT, START_SECONDS, Nodes, places_of
from support.ray_requests import (
    CALLS,
    CLASSIFIER,
    PICTURE,
    PIPELINE,
    REQUESTS,
    STREAMS,
    WITNESS,
    message,
    numbers,
    streamed,
)
from support.servers import ROOT, free_ports, start_reference_server
from support.waiting import until
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"
    ),
]

FILES = Path(__file__).with_name("ray_cluster")
SERVED = (PIPELINE, STREAMS, WITNESS)
#: Of the cards of each node, of which a replica takes one; Ray only counts them.
NPU = {"NPU": 1}
#: 127.0.0.1, for sockets of either family, and ::1.
LOOPBACK = {
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
}
#: Bytes of JSON that are too many, so that a test need not send 64 MiB.
OPTIONS = "--http-max-input-size=100000"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble with a model of the runtime, a model that returns where it was executed, and a
    model that streams."""
    folder = tmp_path_factory.mktemp("models")
    (folder / CLASSIFIER).symlink_to(ROOT / "model_repository" / CLASSIFIER)
    for name in ("asker", PIPELINE, STREAMS, WITNESS):
        (folder / name / "1").mkdir(parents=True)
        shutil.copy(FILES / f"{name}.pbtxt", folder / name / "config.pbtxt")
        if (code := FILES / f"{name}.py").exists():
            shutil.copy(code, folder / name / "1" / "model.py")
    return folder


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory):
    found = Nodes(tmp_path_factory.mktemp("nodes") / "log")
    yield found
    found.close()


def arguments(repository: Path, models: Sequence[str] = SERVED, **more: Any) -> dict[str, Any]:
    settings = {
        WITNESS: {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0, "resources": NPU}},
        PIPELINE: {"loads": [CLASSIFIER]},
        STREAMS: {
            "autoscaling_config": {
                "min_replicas": 1,
                "max_replicas": 2,
                "upscale_delay_s": 0,
                "policy": {
                    "policy_function": "reference_server.autoscaling:ByWork",
                    "policy_kwargs": {
                        "rows_per_second": 0.001,
                        "full_batch_seconds": 0.1,
                        "latency_goal_seconds": 1,
                    },
                },
            }
        },
    }
    chosen = " ".join(f"--load-model={name}" for name in models)
    return {
        "model_repository": str(repository),
        "options": f"--model-control-mode=explicit {chosen} {OPTIONS}",
        "ingress": {"ray_actor_options": {"num_cpus": 1}},
        "models": {name: each for name, each in settings.items() if name in models},
        **more,
    }


@dataclass(frozen=True)
class Served:
    """The addresses at which an application, or one server, accepts requests."""

    http: str
    grpc: str


@pytest.fixture(scope="module")
def one(repository: Path) -> Iterator[Served]:
    """One server, whose answers are to be those of all replicas."""
    flags = {"model_control_mode": "explicit", "load_model": "*", "http_max_input_size": 100000}
    with start_reference_server(repository, triton_version="newest", **flags) as server:
        yield Served(server.http, server.grpc)


@pytest.fixture(scope="module")
def served(nodes: Nodes, repository: Path, tmp_path_factory: pytest.TempPathFactory):
    """The application that `serve run` has deployed."""
    port, grpc_port = free_ports(2)
    config = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port},
        "grpc_options": {
            "port": grpc_port,
            "grpc_servicer_functions": ["reference_server.ray.grpc_ingress:services"],
        },
        "applications": [
            {"import_path": "reference_server.ray:app", "args": arguments(repository)}
        ],
    }
    file = tmp_path_factory.mktemp("config") / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [Path(sys.executable).with_name("serve"), "run", "--non-blocking", file]
    command += [f"--address={nodes('address')}"]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = Served(f"127.0.0.1:{port}", f"127.0.0.1:{grpc_port}")
    deadline = time.monotonic() + START_SECONDS
    while answers(found.http, "GET", "/v2/health/ready")[0] != 200:
        assert time.monotonic() < deadline, "the application is not ready"
        time.sleep(0.1)
    return found


def answers(address: str, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            return reply.status, reply.read()
        except OSError:
            return 0, b""


# -- answers


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda it: f"{it[1]} {it[2]!s:.20}")
def test_answers_are_those_of_one_server(served: Served, one: Served, request_: Any):
    def raw(address: str, method: str, path: str, body: object) -> tuple[int, str | None, bytes]:
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
        (reply,) = exchange(address, head.encode() + text).replies
        return reply.status, reply.header("content-type"), reply.body

    assert raw(served.http, *request_) == raw(one.http, *request_)


@pytest.mark.parametrize(("name", "asked"), CALLS, ids=lambda it: str(it)[:40])
def test_calls_of_grpc_are_answered_as_by_one_server(
    served: Served, one: Served, name: str, asked: Message
):
    def called(address: str) -> tuple[Any, ...]:
        with grpc.insecure_channel(address) as channel:
            method = getattr(GRPCInferenceServiceStub(channel), name)
            try:
                return grpc.StatusCode.OK, method(asked, timeout=60)
            except grpc.RpcError as error:
                return error.code(), error.details()

    assert called(served.grpc) == called(one.grpc)


@pytest.mark.parametrize("errors_end", ["false", "true"])
def test_a_stream_of_grpc_has_the_answers_of_one_server(
    served: Served, one: Served, errors_end: str
):
    def answered(address: str) -> tuple[list[Any], dict[str, list[Any]], Any]:
        in_order, of_streams = [], defaultdict(list)
        asked = [PICTURE, streamed(3, 0), message("nobody", "2"), PICTURE, streamed(2, 3)]
        with grpc.insecure_channel(address) as channel:
            call = GRPCInferenceServiceStub(channel).ModelStreamInfer(
                iter(asked), timeout=60, metadata=[("triton_grpc_error", errors_end)]
            )
            with contextlib.suppress(grpc.RpcError):
                for told in call:
                    if told.infer_response.model_name == STREAMS:
                        of_streams[told.infer_response.id].append(told)
                    else:
                        in_order.append(told)
            end = call.code(), call.details()
        return in_order, dict(of_streams), end

    of_all, of_one = answered(served.grpc), answered(one.grpc)
    if errors_end == "true":  # what came before the error is by chance
        assert of_all[2] == of_one[2]
    else:
        assert of_all == of_one


def test_what_all_replicas_tell_is_put_together(served: Served):
    _, body = answers(served.http, "GET", "/v2/models/stats")
    assert tuple(each["name"] for each in json.loads(body)["model_stats"]) == SERVED
    _, body = answers(served.http, "GET", f"/v2/models/{STREAMS}/stats")
    (told,) = json.loads(body)["model_stats"]
    with grpc.insecure_channel(served.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        found = stub.ModelStatistics(pb.ModelStatisticsRequest()).model_stats
        assert tuple(each.name for each in found) == SERVED
        (same,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name=STREAMS)).model_stats
        assert same.inference_count == told["inference_count"]
        rows = stub.RepositoryIndex(pb.RepositoryIndexRequest()).models
        assert tuple((row.name, row.state) for row in rows) == tuple(
            (name, "READY") for name in SERVED
        )
    status, page = answers(served.http, "GET", "/metrics")
    lines = [line for line in page.decode().splitlines() if "nv_inference_count{" in line]
    assert status == 200
    assert sum("witness" in line and "replica=" in line for line in lines) == 2


def test_a_model_with_more_work_than_it_can_do_gets_more_replicas(served: Served, nodes: Nodes):
    until(lambda: nodes("running", STREAMS) == 2, "the second replica")


def test_replicas_listen_at_the_address_of_their_node_only(served: Served):
    found = {
        process: set(places_of(process))
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"ray::ServeReplica" in (read(path) or b"")
        for process in [int(path.parent.name)]
    }
    assert len(found) >= 4
    assert set().union(*found.values()) <= LOOPBACK, found


def read(path: Path) -> bytes | None:
    with contextlib.suppress(OSError):  # a process that has ended
        return path.read_bytes()
    return None


# -- streams that are cut


def stream_of(address: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse, int]:
    """A stream that waits, and the process that it waits in."""
    connection = http.client.HTTPConnection(address, timeout=60)
    path = f"/v2/models/{STREAMS}/generate_stream"
    connection.request("POST", path, json.dumps(numbers(0, 4)))
    reply = connection.getresponse()
    line = reply.readline()
    return connection, reply, int(json.loads(line.removeprefix(b"data: "))["OUT"])


def left_by(repository: Path, process: int) -> Path:
    return repository / STREAMS / "1" / f"{process}.cancelled"


def test_a_client_that_leaves_has_its_stream_cancelled_as_by_one_server(
    served: Served, one: Served, repository: Path
):
    for where in (one, served):
        connection, _, process = stream_of(where.http)
        connection.close()
        until(left_by(repository, process).exists, "the model is informed that no client waits")


def test_a_stream_ends_with_its_replica(served: Served):
    connection, reply, process = stream_of(served.http)
    os.kill(process, signal.SIGKILL)
    # The end of a whole answer does not come.
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        reply.read()
    connection.close()
    until(lambda: answers(served.http, "GET", f"/v2/models/{STREAMS}")[0] == 200, "the other")


# -- replicas that go


def asks(address: str, folder: Path) -> tuple[int, list[int]]:
    """The status, and by which version and process the request was executed."""
    touched = {"name": "TOUCHED", "datatype": "BYTES", "shape": [1, 1], "data": [str(folder)]}
    status, body = answers(address, "POST", f"/v2/models/{WITNESS}/infer", {"inputs": [touched]})
    return status, json.loads(body)["outputs"][0]["data"] if status == 200 else [body]


def test_another_version_takes_over_and_no_request_is_lost(
    served: Served, nodes: Nodes, repository: Path, tmp_path: Path
):
    (tmp_path / "open").touch()
    shutil.copytree(repository / WITNESS / "1", repository / WITNESS / "2")
    found: list[tuple[int, list[int]]] = []

    def ask_on(deployed: Future[object]) -> None:
        while not wait([deployed], 0.05).done:  # without the pause, requests occupy both cores
            found.append(asks(served.http, tmp_path))

    with ThreadPoolExecutor(5) as pool:
        found.append(asks(served.http, tmp_path))
        deployed = pool.submit(nodes, "deploy", arguments(repository, [WITNESS], release=2))
        for _ in range(4):
            pool.submit(ask_on, deployed)
        deployed.result()
    found.append(asks(served.http, tmp_path))
    assert {status for status, _ in found} == {200}
    assert (found[0][1][0], found[-1][1][0]) == (1, 2)


def test_a_replica_and_a_node_die_and_no_request_is_lost(
    served: Served, nodes: Nodes, tmp_path: Path
):
    def executing() -> dict[int, str]:
        """Return the node of each executing process."""
        files = [path for path in tmp_path.iterdir() if path.name.isdecimal()]
        return {int(path.name): path.read_text() for path in files}

    until(lambda: nodes("running", WITNESS) == 2, "both replicas")
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(asks, served.http, tmp_path) for _ in range(16)]
        try:
            until(lambda: len(executing()) == 2, "work on both nodes")
            before = executing()
            nodes("kill_other")
            # Those of the node would notice that by and by.
            for process in before:
                os.kill(process, signal.SIGKILL)
        finally:
            (tmp_path / "open").touch()
        found = [each.result() for each in asked]
    assert {status for status, _ in found} == {200}, found
    assert not {told[1] for _, told in found} & before.keys()
