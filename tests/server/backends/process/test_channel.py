"""Messages over a socket pair."""

import math
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_server.backends.process_host.connection import MessageChannel

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=[])),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@pytest.fixture
def ends() -> Iterator[tuple[MessageChannel, MessageChannel]]:
    one, other = (MessageChannel(end) for end in socket.socketpair())
    yield one, other
    one.shut()
    one.close()
    other.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(messages=st.lists(st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=4))
def test_messages_arrive_as_they_were_sent(ends, messages):
    one, other = ends
    one.send(*messages)
    assert [other.receive() for _ in messages] == messages


def test_a_number_that_is_none_arrives(ends):
    one, other = ends
    one.send([math.nan, math.inf])
    nan, infinite = other.receive()
    assert math.isnan(nan)
    assert math.isinf(infinite)


def test_nobody_waits_for_a_reader_who_is_late(ends):
    one, other = ends
    messages = [[number, "x" * 100_000] for number in range(100)]
    for message in messages:
        one.send(message)
    assert [other.receive() for _ in messages] == messages


def test_messages_of_several_threads_stay_whole(ends):
    one, other = ends
    texts = ["a" * 70_000, "b" * 50_000]
    threads = [
        threading.Thread(target=lambda text=text: [one.send([text]) for _ in range(20)])
        for text in texts
    ]
    for thread in threads:
        thread.start()
    received = [other.receive() for _ in range(40)]
    for thread in threads:
        thread.join()
    assert sorted(received) == sorted([[text] for text in texts] * 20)


def test_what_was_sent_before_the_end_still_arrives(ends):
    one, other = ends
    one.send(["last"])
    one.shut()
    assert other.receive() == ["last"]
    assert other.receive() is None


def test_sending_to_somebody_who_is_gone_does_nothing(ends):
    one, other = ends
    one.send(["x" * 10_000_000])
    other.shut()
    one.send(["more"])
    assert one.receive() is None
