"""Items from any thread to the loop: in order, with few wake-ups."""

import threading

import pytest
from server.support.http import HandCrankedLoop
from server.support.requests import PATIENCE_S

from reference_server.frontends.event_loop import SHARE_S, Mailbox


@pytest.fixture
def loop():
    return HandCrankedLoop()


def test_items_are_received_in_order(loop):
    received = []
    mailbox = Mailbox(loop, received.append)
    for item in "abc":
        mailbox.post(item)
    assert received == []
    loop.turn()
    assert received == ["a", "b", "c"]


def test_one_wake_up_brings_many_items(loop):
    mailbox = Mailbox(loop, lambda item: None)
    for item in range(100):
        mailbox.post(item)
    assert len(loop.calls) == 1


def test_later_items_have_another_wake_up(loop):
    received = []
    mailbox = Mailbox(loop, received.append)
    mailbox.post("a")
    loop.turn()
    mailbox.post("b")
    loop.turn()
    assert received == ["a", "b"]


def test_many_items_are_received_in_shares(loop):
    now_s = [0.0]
    received = []

    def receive(item):
        now_s[0] += SHARE_S / 2
        received.append(item)

    mailbox = Mailbox(loop, receive, lambda: now_s[0])
    for item in range(5):
        mailbox.post(item)
    turns = []
    while loop.calls:
        loop.calls.pop(0)()
        turns.append(len(received))
    assert turns == [2, 4, 5]


def test_a_failing_item_does_not_stop_the_others(loop, caplog):
    received = []

    def receive(item):
        if item == "bad":
            raise ValueError(item)
        received.append(item)

    mailbox = Mailbox(loop, receive)
    for item in ("bad", "good"):
        mailbox.post(item)
    loop.turn()
    assert received == ["good"]
    assert "An answer could not be delivered" in caplog.text


def test_items_posted_while_receiving_are_not_lost(loop):
    received = []

    def receive(item):
        received.append(item)
        if item < 3:
            mailbox.post(item + 1)

    mailbox = Mailbox(loop, receive)
    mailbox.post(1)
    loop.turn()
    loop.turn()
    assert received == [1, 2, 3]


def test_many_threads_lose_nothing_and_keep_their_order(loop):
    received = []
    mailbox = Mailbox(loop, received.append)
    senders = [
        threading.Thread(target=lambda name=name: [mailbox.post((name, n)) for n in range(200)])
        for name in "abcd"
    ]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        loop.turn()
    for sender in senders:
        sender.join(PATIENCE_S)
    loop.turn()
    for name in "abcd":
        assert [n for sender, n in received if sender == name] == list(range(200))


def test_items_posted_during_long_shares_do_not_add_calls(loop):
    """Each call would take its share, and other clients would wait for all calls."""
    now_s = [0.0]

    def receive(item):
        now_s[0] += SHARE_S  # the share is used up
        for _ in range(3):
            mailbox.post(item)

    mailbox = Mailbox(loop, receive, lambda: now_s[0])
    mailbox.post("a")
    received = []
    for _ in range(20):
        calls, loop.calls = loop.calls, []
        before_s = now_s[0]
        for call in calls:  # one iteration of the loop
            mailbox.post("from another thread")
            call()
        received.append(now_s[0] - before_s)
    assert max(received) == pytest.approx(SHARE_S)
    assert len(loop.calls) == 1
