"""The HTTP protocol on the real models: as test_protocol_http.py, with different rows."""

from __future__ import annotations

import pytest
from contract.casebook import Ask, Case, check_row
from contract.cases import real_models
from contract.differences import check_alike, comparable
from contract.recordings import Recording, asked_live, chapters, check_each
from contract.wire import Exchange

pytestmark = pytest.mark.oracle

CHAPTERS = chapters(real_models.CASES)


@pytest.mark.parametrize("case", asked_live(real_models.CASES), ids=str)
def test_the_real_server_answers_as_recorded(
    case: Case, ask_triton_for_real: Ask, recorded_for_real: Recording[Exchange]
):
    answer = ask_triton_for_real(case)
    check_row(case, answer)
    recorded_for_real.check(case, answer, comparable)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_both_servers_answer_alike(
    chapter: str, recorded_for_real: Recording[Exchange], ask_reference_for_real: Ask
):
    def check(case: Case) -> None:
        real = recorded_for_real.said(case)
        check_row(case, real)
        check_alike(case, real, ask_reference_for_real(case))

    check_each(CHAPTERS[chapter], check)
