"""Two models share a simulated card in one process: if one detects its loss, both report it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.ascend_repository import (
    DEVICE,
    GRAPH,
    MODELS,
    build,
    configure,
    environment,
    reconfigure,
)
from contract.test_same_repository import Request, as_input, image
from support.servers import Server, start_reference_server
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

MODEL, NEIGHBOUR = "ge_classifier", "neighbour"
FAILING = 60
"""The execution that finds the card lost: more than the two models take at load."""


@pytest.fixture
def server(real_repository: Path, tmp_path: Path) -> Iterator[Server]:
    repository = tmp_path / "models"
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.pt2", "model.onnx")
    shutil.copytree(real_repository / MODEL, repository / MODEL, ignore=ignored)
    cost = {"cost": "launch_us=1000, element_ns=1000, element2_ns=0"}
    configure(repository / MODEL, MODELS[MODEL] | cost | {"devices": DEVICE})
    build(repository / MODEL, real_repository / MODEL / GRAPH)
    shutil.copytree(repository / MODEL, repository / NEIGHBOUR)
    reconfigure(repository / NEIGHBOUR, f'name: "{MODEL}"', f'name: "{NEIGHBOUR}"')
    with pytest.MonkeyPatch.context() as patch:
        for variable, text in environment().items():
            patch.setenv(variable, text)
        patch.setenv("ASCEND_SIMULATOR_FAULTS", f"execute@{FAILING}=507010")
        flags = {"backend_config": "python,host=inline", "allow_grpc": False}
        flags["triton_version"] = "newest"  # which asks models whether they are ready
        with start_reference_server(repository, **flags) as server:
            yield server


def refused(client: InferenceServerClient, model: str, request: Request) -> str:
    """Return the reason why a request is refused, or ""."""
    try:
        client.infer(model, [as_input(request)]).as_numpy("logits")
    except InferenceServerException as refusal:
        return f"{refusal.status()}: {refusal.message()}"
    return ""


def test_model_whose_neighbour_found_the_card_lost_is_not_ready_at_once(server: Server):
    request = image(random.Random(3))
    with InferenceServerClient(server.http) as client:
        assert not refused(client, NEIGHBOUR, request)
        assert client.is_model_ready(MODEL)
        assert client.is_model_ready(NEIGHBOUR)
        told = next(filter(None, (refused(client, MODEL, request) for _ in range(FAILING))))
        assert told.startswith("503: ")
        assert f"lane 0 of {DEVICE}: {MODEL}/1/model.om: " in told
        assert "507010" in told
        assert not client.is_model_ready(NEIGHBOUR)
        assert not client.is_model_ready(MODEL)
        assert refused(client, NEIGHBOUR, request) == told
        assert client.is_server_live()
        assert not client.is_server_ready()
    # One line about the card, and one about each model, independent of the number of requests.
    assert server.log.count("the process has to be restarted") == 3
