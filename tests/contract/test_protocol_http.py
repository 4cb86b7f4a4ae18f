"""The HTTP protocol of NVIDIA's server: its answers to one row in ten equal the recorded answers.

`tests/recorded/test_http.py` compares the reference server with the recorded answers. This module
also compares the chunks of both servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.casebook import Ask, Case, check_row
from contract.cases import CASES, generate, real_models
from contract.differences import comparable
from contract.probes import BROKEN
from contract.recordings import Recording, asked_live, recording
from contract.wire import Exchange, connect
from support.servers import Server

pytestmark = pytest.mark.oracle

# Words of the log line about each broken probe; they name what was found and where.
WHY_BROKEN = {
    "fails_to_start": "this model cannot start",
    "misspelt": "failed to read text proto from",
    "no_version": "at least one version must be available under the version policy",
    "no_artifact": "no_artifact/1",
    "missing_step": "contains models that are not available or ambiguous: nobody",
}
TABLES = [*CASES, *generate.CASES]


@pytest.fixture(scope="module")
def generated(probe_repository: Path) -> Iterator[Recording[Exchange]]:
    """Return the real server's recorded responses of the generate extension."""
    with recording("generate", probe_repository, generate.CASES) as opened:
        yield opened


@pytest.mark.parametrize("case", asked_live(TABLES), ids=str)
def test_the_real_server_answers_as_recorded(
    case: Case, ask_triton: Ask, recorded: Recording[Exchange], generated: Recording[Exchange]
):
    answer = ask_triton(case)
    check_row(case, answer)
    table = generated if case in generate.CASES else recorded
    table.check(case, answer, comparable)


@pytest.mark.parametrize("server", ["probed_triton", "probed_reference"])
def test_the_log_says_why_a_model_did_not_load(server: str, request: pytest.FixtureRequest):
    assert set(WHY_BROKEN) == set(BROKEN)
    lines = request.getfixturevalue(server).log.splitlines()
    for model, words in WHY_BROKEN.items():
        assert any(model in line and words in line for line in lines), model


def test_no_two_cases_have_the_same_name():
    names = Counter(case.name for case in [*TABLES, *real_models.CASES])
    assert [name for name, count in names.items() if count > 1] == []


CHUNKED = [
    case for case in generate.CASES if case.name.startswith(("generate id", "generate answer"))
]


@pytest.mark.parametrize("case", CHUNKED, ids=str)
def test_chunks_are_cut_alike(case: Case, probed_triton: Server, probed_reference: Server):
    real, ours = (received(server, case.request) for server in (probed_triton, probed_reference))
    assert ours == real


def received(server: Server, request: bytes) -> bytes:
    """Return every byte of a connection that must end with the answer."""
    with connect(server.http) as connection, connection.makefile("rb") as stream:
        connection.sendall(request.replace(b"Host:", b"Connection: close\r\nHost:", 1))
        return stream.read()
