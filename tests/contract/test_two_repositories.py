"""Several repositories on both servers: a name in two repositories is not loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from contract.control_scripts import ensemble
from contract.wire import said
from server.support.model_folders import VECTOR, write_ensemble, write_model
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver
from support.waiting import until

pytestmark = pytest.mark.oracle

FLAGS: dict[str, Any] = {
    **COMPLETE,
    "ready_path": "/v2/health/live",
    "model_control_mode": "explicit",
    "load_model": ["one", "two"],
    "exit_on_error": False,
    "allow_grpc": False,
    "allow_metrics": False,
}
Start = Callable[..., AbstractContextManager[Server]]
POLICY = "version_policy { specific { versions: [1, 5, 9] } }"


@pytest.fixture(scope="module")
def servers(
    oracle_installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    root = tmp_path_factory.mktemp("repositories")
    first, second = root / "first", root / "second"
    for repository, names in ((first, ("one", "both")), (second, ("two", "both"))):
        for name in names:
            write_model(repository, name)
    write_model(second, "holes", VECTOR + POLICY, versions=(1, 9))
    write_ensemble(first, "over_both", ensemble("both"))
    repositories = [str(first), str(second)]
    with (
        start_tritonserver(first, model_repository=repositories, **FLAGS) as real,
        start_reference_server(first, model_repository=repositories, **FLAGS) as ours,
    ):
        yield real, ours


def test_both_servers_say_the_same(servers: tuple[Server, Server]):
    asked = [
        ("POST", "/v2/repository/index"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/one/ready"),
        ("GET", "/v2/models/two/ready"),
        ("GET", "/v2/models/both/ready"),
        ("GET", "/v2/models/both"),
        ("POST", "/v2/repository/models/both/load"),
        ("POST", "/v2/repository/models/over_both/load"),
        ("POST", "/v2/repository/models/holes/load"),
        ("GET", "/v2/models/holes"),
        ("GET", "/v2/models/holes/versions/5"),
        ("POST", "/v2/repository/index"),
        ("GET", "/v2/health/ready"),
    ]
    real, ours = servers
    assert [said(ours.http, *question) for question in asked] == [
        said(real.http, *question) for question in asked
    ]


@pytest.mark.parametrize("start", [start_tritonserver, start_reference_server])
def test_a_poll_unloads_a_name_that_is_in_two_repositories(
    start: Start, oracle_installed: None, tmp_path: Path
):
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    write_model(first, "both")
    flags = FLAGS | {"model_control_mode": "poll", "repository_poll_secs": 1, "load_model": []}
    with start(first, model_repository=[str(first), str(second)], **flags) as server:
        ready = "/v2/models/both/ready"
        until(lambda: said(server.http, "GET", ready) == "200 ")
        write_model(second, "both")
        until(lambda: said(server.http, "GET", ready) == '400 {"error":"Model version not ready"}')
        assert said(server.http, "POST", "/v2/repository/index") == (
            '200 [{"name":"both","state":"UNAVAILABLE",'
            '"reason":"model appears in two or more repositories"}]'
        )
        shutil.rmtree(first / "both")
        until(lambda: said(server.http, "GET", ready) == "200 ")
