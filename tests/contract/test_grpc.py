"""The gRPC protocol of NVIDIA's server: its answers to one row in ten are still the recorded ones.

`tests/recorded/test_grpc.py` compares the reference server with the recorded answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import grpc
import pytest
from contract.grpc_casebook import AskGrpc, GrpcCase, Outcome, check_row
from contract.grpc_cases import CASES, regions, settings
from contract.grpc_differences import comparable
from contract.recordings import Recording, asked_live, recorded_rows
from support.in_process import InProcessServer
from support.servers import Server

pytestmark = pytest.mark.oracle

Recorded = Recording[tuple[Outcome, ...]]
HELD = "Failed to unregister"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module")
def shared_memory() -> Iterator[None]:
    """Create the object of the regions that the cases register."""
    with regions.shared_object():
        yield


def asking(server: Server | InProcessServer) -> Iterator[AskGrpc]:
    """Yield a function that sends a case to the server once and caches the answers."""
    answers: dict[tuple[str, int], tuple[Outcome, ...]] = {}
    with grpc.insecure_channel(server.grpc, options=UNLIMITED) as channel:

        def ask(case: GrpcCase) -> tuple[Outcome, ...]:
            asked = case.name, server.run
            if asked not in answers:
                outcomes = case.put(channel)
                # The real server may answer a request before it releases its region, and then
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
    yield from asking(probed_triton)


recorded = recorded_rows(
    "grpc", CASES, lambda case: case.calls, Outcome, repository="probe_repository"
)


@pytest.mark.parametrize("case", asked_live(CASES), ids=str)
def test_the_real_server_answers_as_recorded(
    case: GrpcCase, ask_triton: AskGrpc, recorded: Recorded
):
    outcomes = ask_triton(case)
    check_row(case, outcomes[-1])
    recorded.check(case, outcomes, comparable)


def test_no_two_cases_have_the_same_name():
    names = Counter(case.name for case in CASES)
    assert [name for name, count in names.items() if count > 1] == []
