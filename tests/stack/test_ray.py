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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract.wire import exchange
from support.servers import ROOT, free_ports, start_reference_server
from support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"
    ),
]

FILES = Path(__file__).with_name("ray_cluster")
PROBES = ROOT / "tests" / "contract" / "probe_models"
CLASSIFIER, WITNESS, COUNTS = "ge_classifier", "witness", "counts"
#: Of the cards of each node, of which a replica takes one; Ray only counts them.
NPU = {"NPU": 1}
#: Ten processes start, on cores that others use.
START_SECONDS = 240
MARK = "answer: "
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    # Or what is told to listen to the loopback is sought at the machine's address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # What is told for autoscaling is told every 10 s.
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "plugin"))),
    "PYTHONWARNINGS": "ignore",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the runtime's, one that tells where it was executed, and one that streams."""
    folder = tmp_path_factory.mktemp("models")
    (folder / CLASSIFIER).symlink_to(ROOT / "model_repository" / CLASSIFIER)
    for name, code in ((WITNESS, FILES / "witness.py"), (COUNTS, PROBES / "counts_up.py")):
        (folder / name / "1").mkdir(parents=True)
        shutil.copy(FILES / f"{name}.pbtxt", folder / name / "config.pbtxt")
        shutil.copy(code, folder / name / "1" / "model.py")
    return folder


class Nodes:
    """The process that has the cluster: `tests/stack/ray_cluster/nodes.py`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, FILES / "nodes.py"],
                env=os.environ | ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self._answer()

    def __call__(self, *command: object) -> Any:
        """What a command answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise AssertionError(self._log.read_text())

    def close(self) -> None:
        try:
            self._process.communicate(timeout=START_SECONDS)
        finally:
            self._process.kill()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory):
    found = Nodes(tmp_path_factory.mktemp("nodes") / "log")
    yield found
    found.close()


def arguments(repository: Path, **more: Any) -> dict[str, Any]:
    in_front = {"ray_actor_options": {"num_cpus": 1}}
    return {
        "model_repository": str(repository),
        "ingress": in_front,
        "models": {
            WITNESS: {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0, "resources": NPU}},
            COUNTS: {
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
        },
        **more,
    }


@pytest.fixture(scope="module")
def served(nodes: Nodes, repository: Path, tmp_path_factory: pytest.TempPathFactory):
    """The address of the application that `serve run` has deployed."""
    (port,) = free_ports(1)
    config = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port},
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
    address = f"127.0.0.1:{port}"
    deadline = time.monotonic() + START_SECONDS
    while answers(address, "GET", "/v2/health/ready")[0] != 200:
        assert time.monotonic() < deadline, "the application is not ready"
        time.sleep(0.1)
    return address


def answers(address: str, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            return reply.status, reply.read()
        except OSError:
            return 0, b""


# -- answers


def numbers(count: int, how: int) -> dict[str, object]:
    return {"id": "7", "IN": [count, how]}


IMAGE = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}
REQUESTS = [
    ("GET", "/v2", None),
    ("GET", "/v2/health/live", None),
    ("GET", f"/v2/models/{CLASSIFIER}", None),
    ("GET", f"/v2/models/{CLASSIFIER}/config", None),
    ("GET", f"/v2/models/{CLASSIFIER}/versions/7", None),
    ("GET", "/v2/models/nobody", None),
    ("POST", "/v2/repository/index", {}),
    ("POST", f"/v2/models/{CLASSIFIER}/infer", {"id": "1", "inputs": [IMAGE]}),
    ("POST", f"/v2/models/{CLASSIFIER}/infer", {"inputs": [{**IMAGE, "shape": [1, 1, 8, 9]}]}),
    ("POST", f"/v2/models/{CLASSIFIER}/infer", {"inputs": []}),
    ("POST", f"/v2/models/{COUNTS}/generate", numbers(1, 1)),
    ("POST", f"/v2/models/{COUNTS}/generate_stream", numbers(5, 0)),
    ("POST", f"/v2/models/{COUNTS}/generate_stream", numbers(2, 3)),
]


def test_answers_are_those_of_one_server(served: str, repository: Path):
    def raw(address: str, method: str, path: str, body: object) -> tuple[int, str | None, bytes]:
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
        (reply,) = exchange(address, head.encode() + text).replies
        return reply.status, reply.header("content-type"), reply.body

    with start_reference_server(repository, triton_version="newest") as one:
        for request in REQUESTS:
            assert raw(served, *request) == raw(one.http, *request), request


def test_what_all_replicas_tell_is_put_together(served: str):
    status, body = answers(served, "GET", f"/v2/models/{CLASSIFIER}/stats")
    (told,) = json.loads(body)["model_stats"]
    assert (status, told["name"], told["inference_count"]) == (200, CLASSIFIER, 1)
    _, body = answers(served, "GET", "/v2/models/stats")
    assert [each["name"] for each in json.loads(body)["model_stats"]] == [
        COUNTS,
        CLASSIFIER,
        WITNESS,
    ]
    status, page = answers(served, "GET", "/metrics")
    lines = [line for line in page.decode().splitlines() if "nv_inference_count{" in line]
    assert sum("witness" in line and "replica=" in line for line in lines) == 2


def test_a_model_with_more_work_than_it_can_do_gets_more_replicas(served: str, nodes: Nodes):
    until(lambda: nodes("running", COUNTS) == 2, "the second replica")


# -- replicas that go


def asks(address: str, folder: Path) -> tuple[int, list[int]]:
    """The status, and by which version and process the request was executed."""
    touched = {"name": "TOUCHED", "datatype": "BYTES", "shape": [1, 1], "data": [str(folder)]}
    status, body = answers(address, "POST", f"/v2/models/{WITNESS}/infer", {"inputs": [touched]})
    return status, json.loads(body)["outputs"][0]["data"] if status == 200 else [body]


def test_another_version_takes_over_and_no_request_is_lost(
    served: str, nodes: Nodes, repository: Path, tmp_path: Path
):
    (tmp_path / "open").touch()
    shutil.copytree(repository / WITNESS / "1", repository / WITNESS / "2")
    found: list[tuple[int, list[int]]] = []

    def ask_on(deployed: Future[object]) -> None:
        while not deployed.done():
            found.append(asks(served, tmp_path))

    with ThreadPoolExecutor(5) as pool:
        found.append(asks(served, tmp_path))
        deployed = pool.submit(nodes, "deploy", arguments(repository, release=2))
        for _ in range(4):
            pool.submit(ask_on, deployed)
        deployed.result()
    found.append(asks(served, tmp_path))
    assert {status for status, _ in found} == {200}
    assert (found[0][1][0], found[-1][1][0]) == (1, 2)


def test_a_replica_and_a_node_die_and_no_request_is_lost(served: str, nodes: Nodes, tmp_path: Path):
    def executing() -> dict[int, str]:
        """Where processes execute, by node."""
        files = [path for path in tmp_path.iterdir() if path.name.isdecimal()]
        return {int(path.name): path.read_text() for path in files}

    until(lambda: nodes("running", WITNESS) == 2, "both replicas")
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(asks, served, tmp_path) for _ in range(16)]
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
