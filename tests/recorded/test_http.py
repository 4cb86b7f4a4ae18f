"""The reference server answers HTTP requests as NVIDIA's server did when it was recorded.

The received bytes must be equal, except where a row of `contract/differences.py` says why not.
`tests/contract` sends one row in ten to the real server, so that the recording stays true.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.casebook import Ask, Case, check_row
from contract.cases import CASES, generate
from contract.conftest import asking
from contract.differences import DIFFERENCES, Difference, check_alike, comparable
from contract.recordings import Recording, chapters, check_each, recording
from contract.wire import Exchange
from support.in_process import InProcessServer

ROWS = [("http", case) for case in CASES] + [("generate", case) for case in generate.CASES]


@pytest.fixture(scope="module")
def recorded(probe_repository: Path) -> Iterator[dict[str, Recording[Exchange]]]:
    with (
        recording("http", probe_repository, CASES) as http,
        recording("generate", probe_repository, generate.CASES) as generated,
    ):
        yield {"http": http, "generate": generated}


@pytest.fixture(scope="module")
def ask(server: InProcessServer) -> Ask:
    """Send a case to the reference server once."""
    return asking(server)


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        pytest.param(table, rows, id=title)
        for table, cases in (("http", CASES), ("generate", generate.CASES))
        for title, rows in chapters(cases).items()
    ],
)
def test_the_answers_are_the_recorded_ones(
    table: str, rows: list[Case], recorded: dict[str, Recording[Exchange]], ask: Ask
):
    def check(case: Case) -> None:
        real = recorded[table].said(case)
        check_row(case, real)
        check_alike(case, real, ask(case))

    check_each(rows, check)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.cases)
def test_each_accepted_difference_still_exists(
    difference: Difference, recorded: dict[str, Recording[Exchange]], ask: Ask
):
    others = [other for other in DIFFERENCES if other is not difference]
    assert any(
        comparable(case, recorded[table].said(case), others) != comparable(case, ask(case), others)
        for table, case in ROWS
        if difference.concerns(case)
    )
