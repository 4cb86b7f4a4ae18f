import math

from ge_runtime.npu.service.server import IdleTimeout


def test_a_service_without_clients_ends():
    assert IdleTimeout(10.0, now=5.0).ends_at == 15.0


def test_grace_begins_when_the_last_client_has_left():
    idle = IdleTimeout(10.0, now=0.0)
    idle.note(2, 1.0)
    assert idle.ends_at == math.inf
    idle.note(1, 2.0)
    assert idle.ends_at == math.inf
    idle.note(0, 3.0)
    idle.note(0, 9.0)
    assert idle.ends_at == 13.0


def test_client_that_comes_within_the_grace_ends_it():
    idle = IdleTimeout(10.0, now=0.0)
    idle.note(0, 1.0)
    idle.note(1, 9.9)
    assert idle.ends_at == math.inf
