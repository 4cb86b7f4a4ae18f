"""Attacks on a live server, shortened: what they send, detect and save."""

import math
import random
from dataclasses import replace

import pytest

from benchmarks.attack import kept, mutators
from benchmarks.attack.__main__ import ATTACKS, attacked, replayed
from benchmarks.attack.ground import Ground, repository
from benchmarks.attack.mutators import CANARY, HIDDEN, forms, slopes, smuggling
from benchmarks.attack.watching import Facts, facts
from tests.support.servers import start_reference_server


@pytest.fixture(scope="module")
def ground():
    with repository() as folder, start_reference_server(folder) as server:
        yield Ground("inline", server, folder, random.Random(1), 0.2)


@pytest.mark.slow
def test_saved_inputs_cause_no_failure(ground):
    for kind in ("http", "grpc"):
        for sent in kept(f"live_{kind}"):
            assert replayed(ground.server, kind, sent) is None, sent


@pytest.mark.slow
def test_no_body_is_read_as_a_request(ground):
    assert len(list(forms())) > 50
    smuggling(ground)


@pytest.mark.slow
def test_a_body_that_is_read_as_a_request_is_detected(ground, monkeypatch):
    monkeypatch.setattr("benchmarks.attack.mutators.forms", lambda: [HIDDEN])
    with pytest.raises(mutators.Harm) as caught:
        smuggling(ground)
    assert caught.value.sent == HIDDEN + CANARY


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "mutated_requests",
        "mutated_frames",
        "leaving",
        "bodies_stalled",
        "content_types",
        "stream_requests",
        "tiny_data",
        "gets_unread",
        "endless_header",
        "packed_messages",
        "long_json_answer",
    ],
)
def test_the_bystander_gets_its_responses_during_an_attack(ground, name):
    row = attacked(ATTACKS[name], replace(ground, dice=random.Random(1)))
    assert row.failures == []
    assert row.noticed.answers > 0


@pytest.mark.slow
def test_an_unexpected_status_is_detected(ground, monkeypatch):
    monkeypatch.setattr("benchmarks.attack.mutators.STATUSES", frozenset())
    with pytest.raises(mutators.Harm, match="status 4"):
        mutators.mutated_requests(replace(ground, dice=random.Random(1)))


def test_growth_is_measured_per_million_requests():
    requests = list(range(0, 3_000_000, 100_000))
    held = [Facts(100 + 2 * number / 1e6, 7, 3, 1) for number in requests]
    assert slopes(requests, held) == pytest.approx((2, 0, 0), abs=1e-6)
    assert all(map(math.isnan, slopes(requests[:3], held[:3])))


@pytest.mark.slow
def test_resources_of_a_server_are_measured(ground):
    found = facts(ground.server)
    assert found.processes == 1
    assert found.mib > 10
    assert min(found.descriptors, found.threads) > 3
