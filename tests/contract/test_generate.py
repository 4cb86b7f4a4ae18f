"""The generate extension, against NVIDIA's server: the same bytes in, the same bytes out.

As in test_protocol_http.py, each case is put to the real server alone and then to both.
"""

from __future__ import annotations

from collections import Counter

import pytest
from contract.casebook import Ask, Case, everything
from contract.cases.generate import CASES
from contract.differences import WRAPPED, Difference, comparable
from contract.test_protocol_http import check_row
from contract.wire import connect
from support.servers import Server

pytestmark = pytest.mark.oracle

DIFFERENCES = [
    *(
        Difference(f'generate type: * types {{"{name}":{value}}}', WRAPPED, everything)
        for name, value in (("UINT8", 256), ("INT8", 200))
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_real_server_answers_as_the_table_says(case: Case, ask_triton: Ask):
    check_row(case, ask_triton(case))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_servers_answer_alike(case: Case, ask_triton: Ask, ask_reference: Ask):
    real, ours = (comparable(case, ask(case), DIFFERENCES) for ask in (ask_triton, ask_reference))
    assert str(ours) == str(real)
    assert ours == real


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.cases)
def test_every_accepted_difference_is_still_there(
    difference: Difference, ask_triton: Ask, ask_reference: Ask
):
    assert any(
        ask_triton(case) != ask_reference(case) for case in CASES if difference.concerns(case)
    )


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
