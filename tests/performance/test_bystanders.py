"""While one client does its worst, others are answered: on the reference server, each in turn."""

import pytest

from benchmarks.bystanders import attack_on, bystander, repository
from tests.support.servers import start_reference_server


@pytest.fixture(scope="module")
def server():
    with repository() as folder, start_reference_server(folder) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        *("stream_requests", "tiny_data", "gets_unread"),
        *("endless_header", "packed_messages", "long_json_answer"),
    ],
)
def test_a_bystander_is_answered_while_the_attack_goes_on(server, attack):
    with attack_on(server, attack) as attacker:
        taken = bystander(server.http, 0.3)
        assert attacker.is_alive()
    assert all(taken.values())
