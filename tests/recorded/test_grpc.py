"""The reference server answers gRPC calls as NVIDIA's server did when it was recorded.

Status, details and messages must be equal, except where a row of `contract/grpc_differences.py`
says why not. `tests/contract/test_grpc.py` sends one row in ten to the real server.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.grpc_casebook import AskGrpc, GrpcCase, check_row
from contract.grpc_cases import CASES
from contract.grpc_differences import DIFFERENCES, Difference, comparable
from contract.recordings import chapters, check_each
from contract.test_grpc import Recorded, asking, recorded, shared_memory
from support.in_process import InProcessServer

__all__ = ["recorded", "shared_memory"]

CHAPTERS = chapters(CASES)


@pytest.fixture(scope="module")
def ask(server: InProcessServer, shared_memory: None) -> Iterator[AskGrpc]:
    """Send a case to the reference server once."""
    yield from asking(server)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_answers_are_the_recorded_ones(chapter: str, recorded: Recorded, ask: AskGrpc):
    def check(case: GrpcCase) -> None:
        said = recorded.said(case)
        check_row(case, said[-1])
        real, ours = (comparable(case, each, DIFFERENCES) for each in (said, ask(case)))
        if ours != real:  # First as text because a difference of texts is easier to read.
            assert "\n".join(map(str, ours)) == "\n".join(map(str, real))
        assert ours == real

    check_each(CHAPTERS[chapter], check)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.cases)
def test_each_accepted_difference_still_exists(
    difference: Difference, recorded: Recorded, ask: AskGrpc
):
    others = [other for other in DIFFERENCES if other is not difference]
    assert any(
        comparable(case, recorded.said(case), others) != comparable(case, ask(case), others)
        for case in CASES
        if difference.concerns(case)
    )
