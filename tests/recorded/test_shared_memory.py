"""The reference server uses shared memory as NVIDIA's server did when it was recorded.

The replies must be equal, and so must the bytes that lie in the shared objects afterwards.
"""

from __future__ import annotations

import pytest
from contract.casebook import Case, check_row
from contract.cases.shared_memory import CASES, FIRST, OBJECTS
from contract.recordings import Recording, chapters, check_each
from contract.test_shared_memory import Outcome, Try, differing, recorded, trying
from support.in_process import InProcessServer

__all__ = ["recorded"]

CHAPTERS = chapters(case for case in CASES if not differing(case))


@pytest.fixture(scope="module")
def try_reference(server: InProcessServer) -> Try:
    """Try a case on the reference server."""
    return trying(server)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_replies_and_memory_are_the_recorded_ones(
    chapter: str, recorded: Recording[Outcome], try_reference: Try
):
    def check(case: Case) -> None:
        real, ours = recorded.said(case), try_reference(case)
        check_row(case, real.exchange)
        assert str(ours.exchange) == str(real.exchange)
        assert ours.exchange == real.exchange
        for key, content in real.memory.items():
            if ours.memory[key] != content:  # the text of a failure shows only the changes
                assert changes(key, ours.memory[key]) == changes(key, content)

    check_each(CHAPTERS[chapter], check)


@pytest.mark.parametrize("case", [case for case in CASES if differing(case)], ids=str)
def test_the_answer_differs_as_documented(
    case: Case, recorded: Recording[Outcome], try_reference: Try
):
    accepted, ours = differing(case), try_reference(case)
    assert accepted is not None
    assert accepted.unsafe or ours != recorded.said(case)
    reply = ours.exchange.replies[-1]
    assert (reply.status, accepted.says in str(reply)) == (accepted.status, True), reply


def test_the_outputs_of_a_region_that_begins_further_on_are_in_it(try_reference: Try):
    (case,) = (row for row in CASES if row.name == "shm output: of a region that begins further on")
    key = next(iter(OBJECTS))
    assert try_reference(case).memory[key][4128:4144] == FIRST


def changes(key: str, content: bytes) -> dict[int, int]:
    """The bytes of an object that are not as they were at first."""
    before = OBJECTS[key]
    assert len(content) == len(before)
    return {
        at: new for at, (old, new) in enumerate(zip(before, content, strict=True)) if old != new
    }
