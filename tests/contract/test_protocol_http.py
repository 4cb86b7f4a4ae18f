"""The HTTP surface, against NVIDIA's server: the same bytes in, the same bytes out.

Each case is held against what the real server said when it was recorded (recordings.py). That must
be what the table says, which keeps the table honest: a misspelt URL would be a 404 of both servers,
and pass. The reference server gets the same bytes, and everything that it sends back must be equal,
but for the rows of differences.py. For one case in ten the real server is asked again.
"""

from __future__ import annotations

from collections import Counter

import pytest
from contract.casebook import Ask, Case
from contract.cases import CASES, real_models
from contract.differences import DIFFERENCES, Difference, comparable
from contract.probes import BROKEN
from contract.recordings import Recording, asked_live
from contract.statistics_scripts import SCRIPTS, Script, play
from contract.wire import Exchange
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
ALL_CASES = [*CASES, *real_models.CASES]


@pytest.mark.parametrize("case", asked_live(CASES), ids=str)
def test_the_real_server_answers_as_recorded(
    case: Case, ask_triton: Ask, recorded: Recording[Exchange]
):
    answer = ask_triton(case)
    check_row(case, answer)
    recorded.check(case, answer, comparable)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_servers_answer_alike(case: Case, recorded: Recording[Exchange], ask_reference: Ask):
    real = recorded.said(case)
    check_row(case, real)
    check_alike(case, real, ask_reference(case))


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_the_real_server_counts_as_the_script_says(script: Script, probed_triton: Server):
    assert play(probed_triton.http, script) == script.moves


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_the_reference_server_counts_as_the_script_says(script: Script, probed_reference: Server):
    assert play(probed_reference.http, script) == script.moves


@pytest.mark.parametrize("server", ["probed_triton", "probed_reference"])
@pytest.mark.parametrize(("model", "words"), WHY_BROKEN.items())
def test_the_log_says_why_a_model_did_not_load(
    server: str, model: str, words: str, request: pytest.FixtureRequest
):
    lines = request.getfixturevalue(server).log.splitlines()
    assert any(model in line and words in line for line in lines)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.cases)
def test_every_accepted_difference_is_still_there(
    difference: Difference, recorded: Recording[Exchange], ask_reference: Ask
):
    others = [other for other in DIFFERENCES if other is not difference]
    assert any(
        comparable(case, recorded.said(case), others)
        != comparable(case, ask_reference(case), others)
        for case in CASES
        if difference.concerns(case)
    )


def test_there_are_words_for_every_broken_probe():
    assert set(WHY_BROKEN) == set(BROKEN)


def test_no_two_cases_have_the_same_name():
    names = Counter(case.name for case in ALL_CASES)
    assert [name for name, count in names.items() if count > 1] == []


def check_row(case: Case, answer: Exchange) -> None:
    """Compare a real answer with its row of the table."""
    status = answer.replies[-1].status if answer.replies else None
    assert (status, len(answer.replies)) == (case.status, case.replies if case.status else 0), (
        answer
    )
    assert case.says in str(answer)


def check_alike(case: Case, real: Exchange, ours: Exchange) -> None:
    """Compare two answers; as text first, since that is easier to read where they differ."""
    real, ours = (comparable(case, answer, DIFFERENCES) for answer in (real, ours))
    assert str(ours) == str(real)
    assert ours == real
