"""A short campaign against a live server: its attacks, findings and kept inputs."""

import math
import random
from dataclasses import replace

import pytest

from benchmarks.bystanders import repository
from campaign import mutators
from campaign.__main__ import ATTACKS, attacked, replayed
from campaign.endurance import slopes
from campaign.ground import Ground
from campaign.reducing import kept
from campaign.smuggling import CANARY, HIDDEN, forms, smuggling
from campaign.watching import Facts, facts
from tests.support.servers import start_reference_server


@pytest.fixture(scope="module")
def ground():
    with repository() as folder, start_reference_server(folder) as server:
        yield Ground("inline", server, folder, random.Random(1), 0.2)


@pytest.mark.slow
def test_inputs_that_did_harm_are_harmless(ground):
    for kind in ("http", "grpc"):
        for sent in kept(f"live_{kind}"):
            assert replayed(ground.server, kind, sent) is None, sent


@pytest.mark.slow
def test_no_body_is_answered_as_a_request(ground):
    assert len(list(forms())) > 50
    smuggling(ground)


@pytest.mark.slow
def test_a_smuggled_request_is_noticed(ground, monkeypatch):
    monkeypatch.setattr("campaign.smuggling.forms", lambda: [HIDDEN])
    with pytest.raises(mutators.Harm) as caught:
        smuggling(ground)
    assert caught.value.sent == HIDDEN + CANARY


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mutated_requests", "mutated_frames", "leaving"])
def test_an_attack_is_recorded_with_its_effect(ground, name):
    row = attacked(ATTACKS[name], replace(ground, dice=random.Random(1)))
    assert row.failures == []
    assert row.noticed.answers > 0


@pytest.mark.slow
def test_an_unexpected_status_is_noticed(ground, monkeypatch):
    monkeypatch.setattr("campaign.mutators.STATUSES", frozenset())
    with pytest.raises(mutators.Harm, match="answered 4"):
        mutators.mutated_requests(replace(ground, dice=random.Random(1)))


def test_memory_growth_is_given_per_million_requests():
    requests = list(range(0, 3_000_000, 100_000))
    held = [Facts(100 + 2 * number / 1e6, 7, 3, 1) for number in requests]
    assert slopes(requests, held) == pytest.approx((2, 0, 0), abs=1e-6)
    assert all(map(math.isnan, slopes(requests[:3], held[:3])))


@pytest.mark.slow
def test_the_memory_of_a_server_is_measured(ground):
    found = facts(ground.server)
    assert found.processes == 1
    assert found.mib > 10
    assert min(found.descriptors, found.threads) > 3
