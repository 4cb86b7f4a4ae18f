"""Clients and tools of docs/versions.md: each asks one server for the same distance.

One that is not installed is skipped by name. The page's versions are those that were run.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.servers import ROOT, Server, start_reference_server

pytestmark = pytest.mark.slow

POINT = np.array([3, 4], np.float32)
INFER = "/v2/models/distance/infer"
BODY = {"inputs": [{"name": "POINT", "datatype": "FP32", "shape": [2], "data": [3, 4]}]}
PAGE = (ROOT / "docs" / "versions.md").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_reference_server(ROOT / "examples" / "models") as server:
        yield server


def tensor(kind: Any) -> Any:
    made = kind("POINT", [2], "FP32")
    made.set_data_from_numpy(POINT)
    return made


def tritonclient_http(server: Server) -> float:
    import tritonclient.http as client

    with client.InferenceServerClient(server.http) as asked:
        answer = asked.infer("distance", [tensor(client.InferInput)])
    return float(answer.as_numpy("DISTANCE")[0])


def tritonclient_grpc(server: Server) -> float:
    import tritonclient.grpc as client

    with client.InferenceServerClient(server.grpc) as asked:
        answer = asked.infer("distance", [tensor(client.InferInput)])
    return float(answer.as_numpy("DISTANCE")[0])


def tritonclient_aio(server: Server) -> float:
    import tritonclient.grpc.aio as over_grpc
    import tritonclient.http.aio as over_http

    async def ask(client: Any, address: str) -> float:
        async with client.InferenceServerClient(address) as asked:
            answer = await asked.infer("distance", [tensor(client.InferInput)])
        return float(answer.as_numpy("DISTANCE")[0])

    async def both() -> set[float]:
        return {await ask(over_http, server.http), await ask(over_grpc, server.grpc)}

    (found,) = asyncio.run(both())
    return found


def grpcio(server: Server) -> float:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(
        model_name="distance", raw_input_contents=[POINT.tobytes()]
    )
    request.inputs.add(name="POINT", datatype="FP32", shape=[2])
    with grpc.insecure_channel(server.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])


def requests(server: Server) -> float:
    import requests as client

    return distance(client.post(f"http://{server.http}{INFER}", json=BODY, timeout=60).json())


def httpx(server: Server) -> float:
    import httpx as client

    return distance(client.post(f"http://{server.http}{INFER}", json=BODY).json())


def aiohttp(server: Server) -> float:
    import aiohttp as client

    async def ask() -> Any:
        url = f"http://{server.http}{INFER}"
        async with client.ClientSession() as session, session.post(url, json=BODY) as answer:
            return await answer.json()

    return distance(asyncio.run(ask()))


def prometheus_client(server: Server) -> float:
    """The metrics page of the server that has answered."""
    from urllib.request import urlopen

    from prometheus_client.parser import text_string_to_metric_families

    found = tritonclient_http(server)
    with urlopen(f"http://{server.metrics}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    samples = [own for family in families for own in family.samples]
    counted = [own.value for own in samples if own.name.startswith("nv_inference_count")]
    assert len(families) > 10
    assert sum(counted) > 0
    return found


KSERVE = """
import asyncio, sys
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

given = InferInput("POINT", [2], "FP32", data=[3.0, 4.0])
request = InferRequest(model_name="distance", infer_inputs=[given])
client = InferenceRESTClient(RESTConfig(protocol="v2"))
answer = asyncio.run(client.infer(sys.argv[1], request, model_name="distance"))
print(answer.outputs[0].data[0])
"""


def kserve(server: Server) -> float:
    """In a process of its own: its protobuf messages have the names of tritonclient's."""
    command = [sys.executable, "-c", KSERVE, f"http://{server.http}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def pytriton(server: Server) -> float:
    from pytriton.client import ModelClient

    with ModelClient(f"http://{server.http}", "distance") as client:
        return float(client.infer_sample(POINT)["DISTANCE"][0])


def distance(answer: dict[str, Any]) -> float:
    return float(answer["outputs"][0]["data"][0])


CLIENTS: dict[str, list[Callable[[Server], float]]] = {
    "tritonclient": [tritonclient_http, tritonclient_grpc, tritonclient_aio],
    "grpcio": [grpcio],
    "requests": [requests],
    "httpx": [httpx],
    "aiohttp": [aiohttp],
    "prometheus_client": [prometheus_client],
    "kserve": [kserve],
    "nvidia-pytriton": [pytriton],
}


@pytest.mark.parametrize(
    ("package", "ask"), [(name, ask) for name, asks in CLIENTS.items() for ask in asks]
)
def test_a_client_gets_the_answer(
    server: Server, package: str, ask: Callable[[Server], float]
) -> None:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    print(f"{package} {version}")
    assert ask(server) == 5.0


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
def test_curl_gets_the_answer(server: Server, version: str) -> None:
    command = ["curl", "-sf", version, f"http://{server.http}{INFER}", "-d", json.dumps(BODY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert distance(json.loads(done.stdout)) == 5.0


def test_the_page_has_a_version_of_each_client() -> None:
    rows = dict(re.findall(r"^\| `?([\w-]+)`?[^|]*\| ([\d.]+)", PAGE, re.M))
    assert {*CLIENTS, "curl", "perf_analyzer"} <= set(rows)
