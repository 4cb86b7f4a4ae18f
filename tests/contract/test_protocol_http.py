"""The HTTP protocol of NVIDIA's server: its answers to one row in ten are still the recorded ones.

`tests/recorded/test_http.py` compares the reference server with the recorded answers.
"""

from __future__ import annotations

from collections import Counter

import pytest
from contract.casebook import Ask, Case, check_row
from contract.cases import CASES, real_models
from contract.differences import comparable
from contract.recordings import Recording, asked_live
from contract.wire import Exchange

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


@pytest.mark.parametrize("server", ["probed_triton", "probed_reference"])
@pytest.mark.parametrize(("model", "words"), WHY_BROKEN.items())
def test_the_log_says_why_a_model_did_not_load(
    server: str, model: str, words: str, request: pytest.FixtureRequest
):
    lines = request.getfixturevalue(server).log.splitlines()
    assert any(model in line and words in line for line in lines)


def test_no_two_cases_have_the_same_name():
    names = Counter(case.name for case in ALL_CASES)
    assert [name for name, count in names.items() if count > 1] == []
