"""The servers' readiness of a model while the device service that executes it is down."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.ascend_repository import configure
from runtime.support.services import Services
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver
from support.waiting import until
from tritonclient.http import InferenceServerClient

MODEL = "ge_classifier"
PARAMETERS = {
    "placement": "service",
    "cost": "launch_us=100, element_ns=100, element2_ns=0",
}
#: Release 2.51 does not call `is_ready` of models.
NEWEST = {"triton_version": "newest"}
STARTERS: dict[str, tuple[Any, dict[str, str]]] = {
    "inline host": (
        start_reference_server,
        {"backend_config": "python,host=inline", "triton_version": "newest"},
    ),
    "process host": (
        start_reference_server,
        {"backend_config": "python,host=process", "triton_version": "newest"},
    ),
    "tritonserver": (start_tritonserver, {}),
}


def is_ready(server: Server) -> bool:
    with InferenceServerClient(server.http) as client:
        ready: bool = client.is_model_ready(MODEL)
        assert client.is_server_live()
    return ready


@pytest.fixture(
    params=[
        "inline host",
        "process host",
        pytest.param("tritonserver", marks=pytest.mark.oracle),
    ]
)
def served(
    request: pytest.FixtureRequest,
    real_repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[str, Server, Services]]:
    """Run a server with one model in a device service."""
    start, flags = STARTERS[request.param]
    if start is start_tritonserver:
        request.getfixturevalue("oracle_installed")
    repository = tmp_path / "models"
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.pt2")
    shutil.copytree(real_repository / MODEL, repository / MODEL, ignore=ignored)
    configure(repository / MODEL, PARAMETERS)
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with (
        Services(tmp_path / "run" / "ge_runtime") as services,
        start(repository, **COMPLETE, allow_metrics=False, allow_grpc=False, **flags) as server,
    ):
        yield request.param, server, services


def test_model_is_not_ready_while_its_service_is_down_if_the_server_asks_it(
    served: tuple[str, Server, Services],
):
    name, server, services = served
    assert is_ready(server)
    with services.killed():
        if name == "tritonserver":  # of 2.51.0, which asks no model
            assert is_ready(server)
        else:
            until(lambda: not is_ready(server), "the server's notice")
    until(lambda: services.pid() is not None, "the next service")
    until(lambda: is_ready(server), "the model")
