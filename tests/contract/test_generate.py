"""The generate extension of NVIDIA's server: recorded answers, and how both servers cut chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.casebook import Ask, Case, check_row
from contract.cases.generate import CASES
from contract.differences import comparable
from contract.recordings import Recording, asked_live, recording
from contract.wire import Exchange, connect
from support.servers import Server

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def recorded(probe_repository: Path) -> Iterator[Recording[Exchange]]:
    with recording("generate", probe_repository, CASES) as opened:
        yield opened


@pytest.mark.parametrize("case", asked_live(CASES), ids=str)
def test_the_real_server_answers_as_recorded(
    case: Case, ask_triton: Ask, recorded: Recording[Exchange]
):
    answer = ask_triton(case)
    check_row(case, answer)
    recorded.check(case, answer, comparable)


def test_no_two_cases_have_the_same_name():
    assert [name for name, count in Counter(map(str, CASES)).items() if count > 1] == []


CHUNKED = [case for case in CASES if case.name.startswith(("generate id", "generate answer"))]


@pytest.mark.parametrize("case", CHUNKED, ids=str)
def test_chunks_are_cut_alike(case: Case, probed_triton: Server, probed_reference: Server):
    real, ours = (received(server, case.request) for server in (probed_triton, probed_reference))
    assert ours == real


def received(server: Server, request: bytes) -> bytes:
    """Every byte of a connection, which is to end with the answer."""
    with connect(server.http) as connection, connection.makefile("rb") as stream:
        connection.sendall(request.replace(b"Host:", b"Connection: close\r\nHost:", 1))
        return stream.read()
