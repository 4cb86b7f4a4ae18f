"""Ensembles on both servers: the same graphs, the same questions, the same answers."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from contract.ensemble_probes import PROBES, REFUSED
from contract.ensemble_scripts import ANSWER_SECONDS, FAILED_BESIDE, ROWS, Question, infer
from contract.probes import write_probe
from support.servers import COMPLETE, Flag, Server, start_reference_server, start_tritonserver

pytestmark = pytest.mark.oracle

FLAGS: dict[str, Flag] = {
    **COMPLETE,
    "allow_metrics": False,
    "exit_on_error": False,
    "model_load_thread_count": 8,
}
LIVE = "/v2/health/live"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ensembles") / "repository"
    for name, probe in PROBES.items():
        write_probe(folder, name, probe)
    return folder


@pytest.fixture(scope="module")
def real(oracle_installed: None, repository: Path) -> Iterator[Server]:
    with start_tritonserver(repository, ready_path=LIVE, **FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def ours(repository: Path) -> Iterator[Server]:
    with start_reference_server(repository, ready_path=LIVE, **FLAGS) as server:
        yield server


def said_by_the_real_one(question: Question, real: Server) -> str:
    """The real server's answer; it sometimes loses the end of a stream through another step."""
    for _ in range(2):
        with contextlib.suppress(grpc.RpcError):
            return question.ask(real)
    return question.ask(real)


@pytest.mark.parametrize("question", ROWS, ids=str)
def test_both_servers_say_the_same(question: Question, real: Server, ours: Server):
    assert question.ask(ours) == said_by_the_real_one(question, real)


@pytest.mark.parametrize("what", FAILED_BESIDE)
def test_a_step_that_fails_beside_another_ends_the_request(what: str, ours: Server):
    assert infer("parted_beside", what=what, X=9.0).ask(ours) == FAILED_BESIDE[what]


def unloaded(server: Server) -> set[str]:
    connection = http.client.HTTPConnection(server.http, timeout=ANSWER_SECONDS)
    connection.request("POST", "/v2/repository/index")
    rows = json.loads(connection.getresponse().read())
    connection.close()
    return {row["name"] for row in rows if row.get("state") != "READY"}


@pytest.mark.parametrize("name", REFUSED)
def test_both_servers_refuse_it_for_the_same_reason(name: str, real: Server, ours: Server):
    for server in (real, ours):
        assert REFUSED[name] in server.log.replace('\\"', '"')


@pytest.mark.parametrize("which", ["real", "ours"])
def test_no_other_is_refused(which: str, request: pytest.FixtureRequest):
    server: Server = request.getfixturevalue(which)
    assert unloaded(server) == set(REFUSED)


def test_the_questions_are_told_apart():
    names = [question.name for question in ROWS]
    assert sorted(set(names)) == sorted(names)
