"""Ensembles on both servers: the same graphs, the same questions, the same answers."""

from __future__ import annotations

import contextlib

import grpc
import pytest
from contract.ensemble_probes import PROBES, REFUSED
from contract.ensemble_scripts import FAILED_BESIDE, ROWS, Question, infer
from contract.serving import both_servers, folder_of
from contract.wire import index
from support.servers import COMPLETE, Flag, Server

pytestmark = pytest.mark.oracle

FLAGS: dict[str, Flag] = {
    **COMPLETE,
    "allow_metrics": False,
    "exit_on_error": False,
    "model_load_thread_count": 8,
}
LIVE = "/v2/health/live"


repository = folder_of(PROBES)
real, ours = both_servers(LIVE, **FLAGS)


def said_by_the_real_one(question: Question, real: Server) -> str:
    """Return the real server's answer. Another step sometimes makes it lose a stream's end."""
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


@pytest.mark.parametrize("name", REFUSED)
def test_both_servers_refuse_it_for_the_same_reason(name: str, real: Server, ours: Server):
    for server in (real, ours):
        assert REFUSED[name] in server.log.replace('\\"', '"')


@pytest.mark.parametrize("which", ["real", "ours"])
def test_no_other_is_refused(which: str, request: pytest.FixtureRequest):
    server: Server = request.getfixturevalue(which)
    rows = index(server.http)
    assert {name for name in rows if rows[name].get("state") != "READY"} == set(REFUSED)
