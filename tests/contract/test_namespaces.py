"""`--model-namespacing` on both servers: models with one name in two repositories."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.control_scripts import ensemble
from contract.wire import said
from server.support.model_folders import VECTOR, write_ensemble, write_model
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.oracle

ADDING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor(
                "Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() + {})])
                for request in requests]
"""
ASKING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.asked(request) for request in requests]

        def asked(self, request):
            x = pb_utils.get_input_tensor_by_name(request, "X")
            answer = pb_utils.InferenceRequest(
                model_name="{}", requested_output_names=["Y"], inputs=[x]).exec()
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
            return pb_utils.InferenceResponse(answer.output_tensors())
"""
NAMES = ("both", "first", "second", "over_own", "over_second", "over_both", "asks_both", "nobody")
FLAGS: dict[str, Any] = {
    **COMPLETE,
    "ready_path": "/v2/health/live",
    "model_control_mode": "explicit",
    "load_model": "first",
    "model_namespacing": True,
}
LOADED = ("both", "over_own", "over_second", "over_both", "asks_both", "nobody")


@pytest.fixture(scope="module")
def servers(
    oracle_installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[tuple[Server, Path], ...]]:
    """Run the real server and the reference server, each with two separate repositories."""
    roots = []
    for who in ("real", "ours"):
        root = tmp_path_factory.mktemp(who)
        one, two = root / "one", root / "two"
        write_model(one, "both", VECTOR, ADDING.format(1))
        write_model(two, "both", VECTOR, ADDING.format(2))
        write_model(one, "first", VECTOR, ADDING.format(10))
        write_model(two, "second", VECTOR, ADDING.format(20))
        write_model(one, "asks_both", VECTOR, ASKING.format("both"))
        write_ensemble(one, "over_own", ensemble("both"))
        write_ensemble(one, "over_second", ensemble("second"))
        write_ensemble(two, "over_both", ensemble("both"))
        roots.append(root)
    real, ours = roots
    with (
        start_tritonserver(real / "one", **repositories(real)) as triton,
        start_reference_server(ours / "one", **repositories(ours)) as reference,
    ):
        yield (triton, real), (reference, ours)


def repositories(root: Path) -> dict[str, Any]:
    return {**FLAGS, "model_repository": [str(root / "one"), str(root / "two")]}


def over_grpc(server: Server, name: str) -> str:
    with InferenceServerClient(server.grpc) as client:
        try:
            return str(client.get_model_metadata(name))
        except InferenceServerException as error:
            return f"{error.status()}: {error.message()}"


def state_of(server: Server) -> list[str]:
    """Return all reports about the models, by both protocols."""
    told = [
        said(server.http, "POST", "/v2/repository/index", {}),
        said(server.http, "GET", "/v2/models/stats"),
    ]
    for name in NAMES:
        entry = "I" if name.startswith("over") else "X"
        tensor = {"name": entry, "datatype": "FP32", "shape": [1], "data": [0]}
        told += [
            said(server.http, "GET", f"/v2/models/{name}/ready"),
            said(server.http, "GET", f"/v2/models/{name}"),
            said(server.http, "GET", f"/v2/models/{name}/stats").partition("last_inference")[0],
            said(server.http, "POST", f"/v2/models/{name}/infer", {"inputs": [tensor]}),
            said(server.http, "POST", f"/v2/models/{name}/versions/1/infer", {"inputs": [tensor]}),
            over_grpc(server, name),
        ]
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as page:
        counts = [line for line in page.read().decode().splitlines() if "_count{" in line]
    return [*told, *sorted(line for line in counts if line.startswith("nv_inference_count"))]


def play(server: Server, root: Path) -> dict[str, object]:
    """Return the reports after each step of the life of these models."""
    told: dict[str, object] = {"at the start": state_of(server)}
    for name in LOADED:
        told[f"load {name}"] = said(server.http, "POST", f"/v2/repository/models/{name}/load", {})
    told["loaded"] = state_of(server)
    for name in ("second", "both", "nobody"):
        told[f"unload {name}"] = said(
            server.http, "POST", f"/v2/repository/models/{name}/unload", {}
        )
        wait_until_unloaded(server)
    told["unloaded"] = state_of(server)
    shutil.rmtree(root / "two" / "both")
    told["load what is left"] = said(server.http, "POST", "/v2/repository/models/both/load", {})
    told["load over it"] = said(server.http, "POST", "/v2/repository/models/over_own/load", {})
    told["left"] = state_of(server)
    return told


def wait_until_unloaded(server: Server) -> None:
    while "UNLOADING" in said(server.http, "POST", "/v2/repository/index", {}):
        pass


def test_both_servers_tell_the_same_through_a_life(servers: tuple[tuple[Server, Path], ...]):
    real, ours = (play(server, root) for server, root in servers)
    (_, real_root), (_, our_root) = servers
    told = json.loads(json.dumps(real).replace(str(real_root), str(our_root)))
    for step, answers in told.items():
        assert ours[step] == answers, step
