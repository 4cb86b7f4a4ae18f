"""The gRPC surface, against NVIDIA's server: the same messages in, the same messages out.

As for HTTP, each case is held against what the real server said: that is what the table says, and
the reference server answers alike, in status, details and every message, but for the rows of
grpc_differences.py. For one case in ten the real server is asked again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from contract.grpc_casebook import AskGrpc, GrpcCase, Outcome
from contract.grpc_cases import CASES, regions, settings
from contract.grpc_differences import DIFFERENCES, Difference, comparable
from contract.recordings import Recording, asked_live, own_path
from support.servers import Server

pytestmark = pytest.mark.oracle

Recorded = Recording[tuple[Outcome, ...]]
HELD = "Failed to unregister"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module")
def shared_memory() -> Iterator[None]:
    """The object behind the regions that the cases register."""
    with regions.shared_object():
        yield


def _asking(server: Server) -> Iterator[AskGrpc]:
    """Give a function that puts each case to a server once, and remembers the answers."""
    answers: dict[tuple[str, int], tuple[Outcome, ...]] = {}
    with grpc.insecure_channel(server.grpc, options=UNLIMITED) as channel:

        def ask(case: GrpcCase) -> tuple[Outcome, ...]:
            asked = case.name, server.process.pid  # one that was started again is asked again
            if asked not in answers:
                outcomes = case.put(channel)
                # The real server may answer a request before it lets go of its region, and then
                # the next case, which begins by unregistering all, finds it in use.
                while any(HELD in outcome.details for outcome in outcomes[:-1]):
                    outcomes = case.put(channel)
                answers[asked] = outcomes
            return answers[asked]

        yield ask
        for call in (regions.unregister(), settings.log(**settings.KEPT)):
            call.put(channel)  # for the other tests that use these servers


@pytest.fixture(scope="module")
def ask_triton(probed_triton: Server, shared_memory: None) -> Iterator[AskGrpc]:
    """Put a case to the real server."""
    yield from _asking(probed_triton)


@pytest.fixture(scope="module")
def ask_reference(probed_reference: Server, shared_memory: None) -> Iterator[AskGrpc]:
    """Put a case to the reference server."""
    yield from _asking(probed_reference)


@pytest.fixture(scope="module")
def recorded(probe_repository: Path) -> Iterator[Recorded]:
    """What the real server said."""
    opened: Recorded = Recording(
        "grpc", [Outcome], lambda case: case.calls, own_path(probe_repository), CASES
    )
    yield opened
    opened.close()


@pytest.mark.parametrize("case", asked_live(CASES), ids=str)
def test_the_real_server_answers_as_recorded(
    case: GrpcCase, ask_triton: AskGrpc, recorded: Recorded
):
    outcomes = ask_triton(case)
    check_row(case, outcomes[-1])
    recorded.check(case, outcomes, comparable)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_servers_answer_alike(case: GrpcCase, recorded: Recorded, ask_reference: AskGrpc):
    said = recorded.said(case)
    check_row(case, said[-1])
    real, ours = (comparable(case, each, DIFFERENCES) for each in (said, ask_reference(case)))
    # As text first, since that is easier to read where they differ.
    assert "\n".join(map(str, ours)) == "\n".join(map(str, real))
    assert ours == real


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.cases)
def test_every_accepted_difference_is_still_there(
    difference: Difference, recorded: Recorded, ask_reference: AskGrpc
):
    others = [other for other in DIFFERENCES if other is not difference]
    assert any(
        comparable(case, recorded.said(case), others)
        != comparable(case, ask_reference(case), others)
        for case in CASES
        if difference.concerns(case)
    )


def check_row(case: GrpcCase, answer: Outcome) -> None:
    """Compare a real answer with its row of the table."""
    assert answer.code == case.code, answer
    assert case.says in str(answer)


def test_no_two_cases_have_the_same_name():
    names = Counter(case.name for case in CASES)
    assert [name for name, count in names.items() if count > 1] == []
