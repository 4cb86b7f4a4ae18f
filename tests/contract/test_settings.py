"""Trace and log settings: the real server's answers to one row in ten equal the recorded answers.

`tests/recorded/test_settings.py` compares the reference server with all recorded answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract.casebook import Case, check_row, get
from contract.cases.settings import LOG, LOG_CASES, MODEL_TRACE, TRACE, TRACE_CASES
from contract.recordings import Recording, asked_live, recording
from contract.test_logging import AT_START
from contract.test_logging import change as change_log
from contract.test_trace import clear
from contract.wire import Exchange, exchange
from support.in_process import InProcessServer
from support.servers import Server

pytestmark = pytest.mark.oracle

Answers = tuple[Exchange, ...]


@dataclass(frozen=True)
class Table:
    """Requests that change settings, pages that show them, and requests that restore them."""

    cases: list[Case]
    pages: tuple[str, ...]
    set_back: Callable[..., None]


TABLES = {
    "trace": Table(TRACE_CASES, (TRACE, MODEL_TRACE), clear),
    "logging": Table(LOG_CASES, (LOG,), lambda server: change_log(server, **AT_START)),
}


def outcome(server: Server | InProcessServer, table: Table, case: Case) -> Answers:
    """Return the answer to a case and the settings after it; then restore the settings."""
    try:
        requests = (case.request, *map(get, table.pages))
        return tuple(exchange(server.http, request) for request in requests)
    finally:
        table.set_back(server)


@pytest.fixture(scope="module")
def recorded(traced_repository: Path) -> Iterator[dict[str, Recording[Answers]]]:
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(recording(name, traced_repository, table.cases))
            for name, table in TABLES.items()
        }


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name, table in TABLES.items() for case in asked_live(table.cases)],
    ids=str,
)
def test_the_real_server_answers_as_recorded(
    name: str, case: Case, traced_triton: Server, recorded: dict[str, Recording[Answers]]
):
    answers = outcome(traced_triton, TABLES[name], case)
    check_row(case, answers[0])
    recorded[name].check(case, answers, lambda _, answer: answer)
