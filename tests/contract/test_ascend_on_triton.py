"""The project's own models on a simulated card, in model processes of either server.

All instances share one device service, which executes .om files. Its answers must equal those of
the same graphs on the CPU.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from contract.ascend_repository import (
    CHIP,
    DEVICE,
    INSTANCES,
    MODELS,
    STARTERS,
    Served,
    instances_of,
    serving,
    stems_of,
)
from contract.test_same_repository import (
    Request,
    as_input,
    chinese,
    english,
    fused,
    image,
    many_at_once,
    one_at_a_time,
    text,
)
from support.servers import Server
from support.waiting import until
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from ascend_simulator.models import om

pytestmark = pytest.mark.oracle

ABSOLUTE = 1e-3
CLIENTS = 8
MANY = 200


@pytest.fixture(scope="module", params=STARTERS)
def served(
    request: pytest.FixtureRequest,
    oracle_installed: None,
    card_repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Run either server with all models."""
    folder = tmp_path_factory.mktemp("services")
    with serving(request.param, card_repository, folder) as served:
        yield served


# ---------------------------------------------------------------------------------------- answers


def make_requests() -> dict[str, list[Request]]:
    """Return requests with one or several texts of up to 512 tokens, or images of up to 64x64."""
    rng = random.Random(20241127)
    lengths = [1, 2, 400, *(rng.randint(3, 60) for _ in range(9))]
    texts = [text(rng.choice([english, chinese])(rng, n)) for n in lengths]
    several = [text(*(english(rng, rng.randint(1, 40)) for _ in range(n))) for n in (2, 3, 5, 8)]
    return {
        "texts": [*texts, *several],
        "texts to one model": [fused(request) for request in (*texts[::4], *several[::2])],
        "images": [image(rng, batch) for batch in (*(1,) * 15, 2, 3, 5, 8)],
    }


REQUESTS = make_requests()


@pytest.fixture(scope="module")
def answers_of_the_cpu(reference: Server) -> dict[str, list[dict[str, Any]]]:
    """Return the answers of all groups, one request at a time (see test_same_repository)."""
    return {group: [*one_at_a_time(reference, requests)] for group, requests in REQUESTS.items()}


@pytest.mark.parametrize("group", REQUESTS)
def test_answers_are_those_of_the_cpu(
    group: str, served: Served, answers_of_the_cpu: dict[str, list[dict[str, Any]]]
):
    found = many_at_once(served.server, REQUESTS[group])
    pairs = zip(found, answers_of_the_cpu[group], strict=True)
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
    names = {f"{model}_0_{number}" for model in MODELS for number in range(instances_of(model))}
    assert {client["name"] for client in stats["clients"]} == names
    assert len({client["pid"] for client in stats["clients"]}) == len(names)
    until(lambda: f"{DEVICE} is {CHIP}" in served.server.log, "the line of a model")


def test_memory_is_weights_once_and_the_largest_workspace(served: Served, card_repository: Path):
    paths = [
        card_repository / name / "1" / f"{stem}.om" for name in MODELS for stem in stems_of(name)
    ]
    contents = {path.read_bytes(): path for path in paths}
    assert len(paths) - len(contents) == 1  # the encoder is one of two models
    files = [om.read(str(path)).manifest for path in contents.values()]
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
    with urlopen(f"http://{served.server.metrics}/metrics") as page:
        late = re.findall(rb"^ge_runtime_allocations_after_freeze{.*} (.*)$", page.read(), re.M)
    assert [float(count) for count in late] == [0] * len(after["clients"])
    assert after["turns"]["begun"] > before["turns"]["begun"]


# --------------------------------------------------------------------------- death of the service


def test_all_models_answer_again_after_the_service_was_killed(served: Served):
    requests = [text("Where is my parcel?"), image(random.Random(5))]
    expected = [served.ask(request) for request in requests]
    before, instances = served.stats(), served.instances()
    with served.services.killed(DEVICE):
        for request in requests * INSTANCES:
            refusal = served.ask(request)
            assert isinstance(refusal, InferenceServerException)
            assert refusal.status() == "503"
            lost = f"the device service of {DEVICE} (pid {before['pid']}) is lost: "
            assert lost in refusal.message()
            assert "; it is being restarted; its log is " in refusal.message()
        if not served.is_real:  # which asks no model of this version whether it is ready
            until(lambda: not served.is_ready("ge_classifier"), "the server's notice")
    until(lambda: served.services.pid(DEVICE) is not None, "the next service")
    until(lambda: served.instances() == instances, "all instances")
    for request, right in zip(requests * INSTANCES, expected * INSTANCES, strict=True):
        until(lambda one=request: isinstance(served.ask(one), np.ndarray), "an answer")
        np.testing.assert_array_equal(served.ask(request), right)
    after = served.stats()
    assert served.is_ready("ge_classifier")
    assert after["pid"] != before["pid"]
    assert after["memory"]["allocated"] == before["memory"]["allocated"]
