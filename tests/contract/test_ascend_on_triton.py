"""The project's own models on a simulated card, in model processes of either server.

Several instances of each model have one device service between them. What it executes are .om
files; what it must answer is what the same graphs answer on the CPU.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.ascend_repository import (
    CHIP,
    INSTANCES,
    MODELS,
    environment,
    write_ascend_repository,
)
from contract.test_same_repository import (
    Request,
    as_input,
    chinese,
    english,
    image,
    many_at_once,
    one_at_a_time,
    text,
)
from runtime.support.services import Services, until
from support.servers import Flag, Server, start_reference_server, start_tritonserver
from tritonclient.http import InferenceServerClient

from ascend_simulator import om

pytestmark = pytest.mark.oracle

DEVICE = "npu:0"
ABSOLUTE = 1e-3
CLIENTS = 8
MANY = 2000
STARTERS: dict[str, tuple[Any, dict[str, Flag]]] = {
    "tritonserver": (start_tritonserver, {}),
    "reference server": (start_reference_server, {"backend_config": "python,host=process"}),
}


@dataclass(frozen=True)
class Served:
    """A server, and the device services of its models."""

    server: Server
    services: Services

    def stats(self) -> dict[str, Any]:
        """What `ge-runtime top` tells of the one service."""
        command = [sys.executable, "-m", "ge_runtime.cli", "top", "--json"]
        shown = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        (stats,) = json.loads(shown.stdout)
        return stats


@pytest.fixture(scope="module")
def card_repository(real_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, compiled."""
    folder = tmp_path_factory.mktemp("card") / "repository"
    write_ascend_repository(real_repository, folder)
    return folder


@pytest.fixture(scope="module", params=STARTERS)
def served(
    request: pytest.FixtureRequest,
    oracle_installed: None,
    card_repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Either server with all models."""
    start, flags = STARTERS[request.param]
    runtime_folder = tmp_path_factory.mktemp("services")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(runtime_folder))
        for name, value in environment().items():
            patch.setenv(name, value)
        with (
            Services(runtime_folder / "ge_runtime") as services,
            start(card_repository, allow_grpc=False, **flags) as server,
        ):
            yield Served(server, services)


# ---------------------------------------------------------------------------------------- answers


def make_requests() -> dict[str, list[Request]]:
    """Texts of up to 512 tokens, images of up to 64x64, and several of either in one request."""
    rng = random.Random(20241127)
    lengths = [1, 2, 400, *(rng.randint(3, 60) for _ in range(25))]
    return {
        "texts": [text(rng.choice([english, chinese])(rng, n)) for n in lengths],
        "several texts": [
            text(*(english(rng, rng.randint(1, 40)) for _ in range(n))) for n in (2, 3, 5, 8) * 2
        ],
        "images": [image(rng) for _ in range(40)],
        "batches of images": [image(rng, batch) for batch in (2, 3, 5, 8) * 3],
    }


REQUESTS = make_requests()


@pytest.mark.parametrize("send", [one_at_a_time, many_at_once], ids=lambda send: send.__name__)
@pytest.mark.parametrize("group", REQUESTS)
def test_answers_are_those_of_the_cpu(group: str, send: Any, served: Served, reference: Server):
    requests = REQUESTS[group]
    pairs = zip(send(served.server, requests), send(reference, requests), strict=True)
    for found, expected in pairs:
        assert found["outputs"].keys() == expected["outputs"].keys()
        for name, output in expected["outputs"].items():
            values = found["outputs"][name]["values"]
            if output["datatype"] == "FP32":
                np.testing.assert_allclose(values, output["values"], rtol=0, atol=ABSOLUTE)
            else:
                np.testing.assert_array_equal(values, output["values"])


# ----------------------------------------------------------------------------------------- memory


def test_instances_are_processes_with_one_service(served: Served):
    stats = served.stats()
    assert stats["place"] == {"kind": "npu", "name": DEVICE, "hardware": CHIP}
    names = {f"{model}_0_{number}" for model in MODELS for number in range(INSTANCES)}
    assert {client["name"] for client in stats["clients"]} == names
    assert len({client["pid"] for client in stats["clients"]}) == len(names)
    assert f"{DEVICE} is {CHIP}" in served.server.log


def test_memory_is_weights_once_and_the_largest_workspace(served: Served, card_repository: Path):
    files = [om.read(str(card_repository / name / "1" / "model.om")).manifest for name in MODELS]
    weights = sum(file.weight_bytes for file in files)
    memory = served.stats()["memory"]
    allocated = memory["allocated"]
    assert allocated.keys() == {"weights", "workspace", "device I/O"}
    assert allocated["weights"] == memory["weights"] == weights
    assert allocated["workspace"] == max(file.work_bytes for file in files)
    apart = INSTANCES * (weights + sum(file.work_bytes for file in files))
    assert sum(allocated.values()) < apart / INSTANCES


def test_many_requests_of_many_clients_allocate_nothing(served: Served):
    rng = random.Random(7)
    kinds = [*(image(rng, rows) for rows in (1, 2, 8) for _ in range(6)), text("Where is it?")]
    expected = [
        answer["outputs"]["logits"]["values"] for answer in one_at_a_time(served.server, kinds)
    ]
    before = served.stats()

    def ask(client: int) -> None:
        with InferenceServerClient(served.server.http, network_timeout=60) as connection:
            for number in range(client, MANY, CLIENTS):
                request, right = (one[number % len(kinds)] for one in (kinds, expected))
                answer = connection.infer(request.model, [as_input(request)])
                np.testing.assert_allclose(answer.as_numpy("logits"), right, rtol=0, atol=ABSOLUTE)

    with ThreadPoolExecutor(CLIENTS) as pool:
        for future in [pool.submit(ask, client) for client in range(CLIENTS)]:
            future.result()
    after = served.stats()
    assert after["memory"] | {"resident": 0} == before["memory"] | {"resident": 0}
    assert [model["faults"] for model in after["models"]] == [0] * len(after["models"])
    assert after["turns"]["begun"] > before["turns"]["begun"]
