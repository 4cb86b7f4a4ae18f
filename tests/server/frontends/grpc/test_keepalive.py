"""Pings: for silent clients, and too many from a client."""

import pytest

from reference_server.frontends.grpc.keepalive import Action, Keepalive, PingStrikes
from reference_server.options import GrpcOptions


def keepalive(**options):
    usual = {"keepalive_time_ms": 10_000, "keepalive_timeout_ms": 2_000}
    return Keepalive(GrpcOptions(**usual | options), now_s=0)


def test_a_silent_client_is_pinged_and_then_disconnected():
    asks = keepalive()
    assert asks.action(10, has_calls=True) is Action.PING
    assert asks.next_s(10) == 12
    assert asks.action(11, has_calls=True) is Action.NOTHING
    assert asks.action(12, has_calls=True) is Action.GIVE_UP


def test_the_next_ping_does_not_wait_for_the_last_ones_timeout():
    asks = keepalive(keepalive_timeout_ms=60_000)
    assert asks.action(10, has_calls=True) is Action.PING
    assert asks.next_s(10) == 20
    assert asks.action(20, has_calls=True) is Action.NOTHING
    assert asks.next_s(20) == 30
    asks.heard(25)
    assert asks.action(30, has_calls=True) is Action.NOTHING
    assert asks.next_s(30) == 35
    assert asks.action(35, has_calls=True) is Action.PING
    assert asks.next_s(94) == 95
    assert asks.action(95, has_calls=True) is Action.GIVE_UP


@pytest.mark.parametrize(("permitted", "action"), [(False, Action.NOTHING), (True, Action.PING)])
def test_pings_without_calls_need_permission(permitted, action):
    asks = keepalive(keepalive_permit_without_calls=permitted)
    assert asks.action(10, has_calls=False) is action
    assert asks.next_s(10) > 10


@pytest.mark.parametrize(("most", "pings"), [(2, 2), (0, 5)])
def test_pings_without_data_are_limited(most, pings):
    asks = keepalive(max_pings_without_data=most)
    found = 0
    for turn in range(5):
        found += asks.action(10 * (turn + 1), has_calls=True) is Action.PING
        asks.heard(10 * (turn + 1))
    assert found == pings
    asks.answered()
    assert asks.action(60, has_calls=True) is Action.PING


def test_early_pings_are_strikes():
    strikes = PingStrikes(GrpcOptions(min_recv_ping_interval_without_data_ms=1_000))
    times = [0, 1, 1.5, 2, 2.5]  # the first two are not early
    assert [strikes.count_ping(time, has_calls=True) for time in times] == [
        *(False, False, False, False),
        True,
    ]


def test_a_response_resets_the_strikes():
    strikes = PingStrikes(GrpcOptions(max_ping_strikes=1))
    for _ in range(9):
        assert not strikes.count_ping(0, has_calls=True)
        assert not strikes.count_ping(0, has_calls=True)
        strikes.answered()


@pytest.mark.parametrize(("permitted", "too_much"), [(False, True), (True, False)])
def test_pings_without_calls_need_a_long_interval(permitted, too_much):
    options = GrpcOptions(
        keepalive_permit_without_calls=permitted, min_recv_ping_interval_without_data_ms=0
    )
    strikes = PingStrikes(options)
    assert any(strikes.count_ping(time, has_calls=False) for time in range(4)) is too_much
    assert not PingStrikes(options).count_ping(7_200, has_calls=False)
