"""uvicorn and hypercorn host the reference server, with the answers of its own HTTP port."""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from contract.casebook import Case, nothing
from contract.cases import real_models
from contract.wire import exchange
from support.servers import ROOT, Server, free_ports
from support.waiting import until

from reference_server.asgi import VARIABLE

pytestmark = pytest.mark.oracle

FACTORY = "reference_server.asgi:from_environment"
HOSTS: dict[str, Callable[[int], tuple[str, ...]]] = {
    "uvicorn": lambda port: ("uvicorn", "--factory", FACTORY, f"--port={port}"),
    "hypercorn": lambda port: ("hypercorn", f"{FACTORY}()", f"--bind=127.0.0.1:{port}"),
}
STOP_SECONDS = 40


def _bytes(case: Case) -> bytes:
    return case.request if isinstance(case.request, bytes) else b"".join(case.request)


#: The model that loads fastest.
MODEL = "ge_classifier"
#: Cases whose answers do not have the order of a hash table.
CASES = [
    case
    for case in real_models.CASES
    if MODEL.encode() in _bytes(case) and case.unstable is nothing and case.replies == 1
]


@contextlib.contextmanager
def hosted(host: str, options: list[str], log: Path) -> Iterator[str]:
    """Run a host; yield its address, and end it in any case."""
    (port,) = free_ports(1)
    sources = os.pathsep.join(map(str, (ROOT, ROOT / "plugin")))
    environment = os.environ | {"PYTHONPATH": sources, VARIABLE: shlex.join(options)}
    command = (sys.executable, "-m", *HOSTS[host](port))
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    with process:
        try:
            until(lambda: process.poll() is not None or is_ready(port), f"{host}: {log}")
            assert process.poll() is None, log.read_text()
            yield f"127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.fixture(scope="module", params=HOSTS)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Run a host with one of the project's models."""
    log = tmp_path_factory.mktemp("host") / "log"
    options = [
        f"--model-repository={ROOT / 'model_repository'}",
        "--triton-version=2.51",
        "--model-control-mode=explicit",
        f"--load-model={MODEL}",
    ]
    with hosted(request.param, options, log) as found:
        yield found
    assert f"successfully unloaded '{MODEL}' version 1" in log.read_text()


def test_answers_are_those_of_the_servers_own_port(address: str, reference: Server):
    def answer(where: str, case: Case) -> tuple[int, str | None, bytes]:
        (reply,) = exchange(where, case.request).replies
        headers = {name.lower(): value for name, value in reply.headers}
        return reply.status, headers.get("content-type"), reply.body

    for case in CASES:
        there, here = answer(reference.http, case), answer(address, case)
        assert here == there, case


def test_tritonclient_sends_tensors_in_bytes_and_gets_them(address: str):
    client = triton.InferenceServerClient(address)
    image = triton.InferInput("image", [2, 1, 12, 20], "FP32")
    image.set_data_from_numpy(np.zeros((2, 1, 12, 20), np.float32), binary_data=True)
    wanted = triton.InferRequestedOutput("logits", binary_data=True)
    answer = client.infer(MODEL, [image], outputs=[wanted])
    assert answer.as_numpy("logits").shape == (2, 10)
    assert client.get_inference_statistics(MODEL)["model_stats"][0]["inference_count"]
    client.close()


def test_the_metrics_are_at_the_same_port(address: str):
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("GET", "/metrics")
    assert b"nv_inference_request_success" in connection.getresponse().read()
    connection.close()
