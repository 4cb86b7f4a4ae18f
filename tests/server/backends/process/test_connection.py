"""Tests of the connection of two processes: messages and shared memory."""

import queue
import re
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server.backends.process.connections import connected
from server.support.requests import PATIENCE_S
from support.waiting import until

from reference_server.backends.process_host import connection
from reference_server.backends.process_host.connection import MessageChannel
from reference_server.core.errors import Code, ServerError

pytestmark = pytest.mark.brute_force

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


def said(channel: MessageChannel) -> list[object] | None:
    """Return the next message, which has no parcel."""
    received = channel.receive()
    if received is None:
        return None
    message, data = received
    assert data is None
    return message


@settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(messages=st.lists(st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=4))
def test_messages_arrive_as_they_were_sent(ends, messages):
    one, other = ends
    one.send(*messages)
    assert [said(other) for _ in messages] == messages


def test_send_does_not_wait_for_a_slow_reader(ends):
    one, other = ends
    messages = [[number, "x" * 100_000] for number in range(100)]
    for message in messages:
        one.send(message)
    assert [said(other) for _ in messages] == messages


def test_messages_of_several_threads_stay_whole(ends):
    one, other = ends
    texts = ["a" * 70_000, "b" * 50_000]
    threads = [
        threading.Thread(target=lambda text=text: [one.send([text]) for _ in range(20)])
        for text in texts
    ]
    for thread in threads:
        thread.start()
    received = [said(other) for _ in range(40)]
    for thread in threads:
        thread.join()
    assert sorted(received) == sorted([[text] for text in texts] * 20)


def test_messages_before_the_end_arrive(ends):
    one, other = ends
    one.send(["last"])
    one.shut()
    assert said(other) == ["last"]
    assert said(other) is None


def test_sending_to_a_closed_peer_has_no_effect(ends):
    one, other = ends
    one.send(["x" * 10_000_000])
    other.shut()
    one.send(["more"])
    assert said(one) is None


def framed(text: bytes) -> bytes:
    """Return the bytes of a message without a parcel."""
    return struct.pack("<Ii", len(text), -1) + text


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"\xff" * 8, "a message of 4294967295 bytes; expected 268435456 at most"),
        (b"\2\0\0\0\xff\xff\xff\x7f[]", "a message of 2147483649 bytes"),
        (b"\2\0\0\0\xfe\xff\xff\xff[]", "found a parcel of -2 bytes"),
        (framed(b"\xff"), "invalid start byte"),
        (framed(b"{"), "Expecting property name"),
        (framed(b"{}"), "expected a list that starts with"),
        (framed(b"[]"), "expected a list that starts with"),
        (framed(b"[" * 200_000), "nested too deeply"),
    ],
    ids=[
        "endless",
        "endless parcel",
        "odd parcel",
        "no text",
        "no JSON",
        "no list",
        "no kind",
        "deep",
    ],
)
def test_invalid_bytes_are_refused_with_a_reason(frame, why):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=theirs.sendall, args=(frame,))
        sending.start()
        with pytest.raises(ValueError, match=re.escape(why)):
            MessageChannel(ours).receive()
        sending.join()


def test_a_message_above_the_limit_is_not_sent(ends, monkeypatch):
    monkeypatch.setattr(connection, "_LIMIT", 100)
    one, other = ends
    text = r"message 'long' .*: found 110 bytes; expected 100 at most"
    with pytest.raises(ServerError, match=text):
        one.send(["long", "x" * 99])
    one.send(["next"])
    assert said(other) == ["next"]


MEGABYTE = 1 << 20


def test_messages_go_to_the_handler_of_their_type():
    came: queue.SimpleQueue[object] = queue.SimpleQueue()
    with connected(other={"a": lambda *x: came.put(("a", x)), "b": lambda: came.put("b")}) as ends:
        ends[0].send("a", 1, [2.5, None])
        ends[0].send("b")
        assert came.get() == ("a", (1, [2.5, None]))
        assert came.get() == "b"


@pytest.mark.parametrize("message", [["bad"], ["unknown"], [["no kind"]], ["good", "too much"]])
def test_a_message_that_cannot_be_handled_ends_the_connection(message, caplog):
    came = threading.Event()
    with connected(other={"bad": lambda: 1 / 0, "good": came.set}) as ends:
        ends[0].send(*message)
        ends[0].send("good")
        until(lambda: ends[0]._is_over)  # the other side is gone for it, too
    assert "a message that cannot be handled" in caplog.text
    assert not came.is_set()


def test_deferred_messages_precede_the_next_message():
    came: queue.SimpleQueue[str] = queue.SimpleQueue()
    with connected(
        other={"later": lambda: came.put("later"), "now": lambda: came.put("now")}
    ) as ends:
        ends[0].send_later("later")
        ends[0].send("now")
        assert [came.get(), came.get()] == ["later", "now"]


def test_blocks_are_freed_with_the_next_message():
    told = threading.Event()
    with connected(one={"hello": told.set}) as (one, other):
        view = other.view(one.put(memoryview(bytes(MEGABYTE))), MEGABYTE)
        del view
        other.send("hello")
        assert told.wait(PATIENCE_S)
        assert one.put(memoryview(bytes(MEGABYTE))) == 0


def test_without_room_the_other_side_reports_unused_blocks():
    with connected() as (one, other):
        view = other.view(one.put(memoryview(bytes(MEGABYTE))), MEGABYTE)
        del view
        assert one.put(memoryview(bytes(MEGABYTE))) == 0


def test_data_without_room_is_refused():
    with connected() as (one, other):
        view = other.view(one.put(memoryview(bytes(MEGABYTE))), MEGABYTE)
        with pytest.raises(ServerError) as caught:
            one.put(memoryview(b"x"))
        assert caught.value.code is Code.INTERNAL
        assert caught.value.message == (
            "tensor of 1 bytes: found no room in the shared memory of the model's process; "
            "expected fewer or smaller tensors in flight"
        )
        del view


def test_the_thread_that_receives_does_not_wait_for_room():
    """The receiving thread would wait for itself."""
    failed = threading.Event()

    def put() -> None:
        try:
            one.put(memoryview(b"x"))
        except ServerError:
            failed.set()

    with connected(one={"put": put}) as (one, other):
        view = other.view(one.put(memoryview(bytes(MEGABYTE))), MEGABYTE)
        other.send("put")
        assert failed.wait(PATIENCE_S)
        del view


def test_no_thread_waits_for_room_of_a_closed_side():
    with connected() as (one, other):
        view = other.view(one.put(memoryview(bytes(MEGABYTE))), MEGABYTE)
        other.shut()
        with pytest.raises(ServerError, match="no room"):
            one.put(memoryview(b"x"))
        del view


def read(kind: str, *parts: object) -> tuple[object, ...]:
    return (kind, *parts)


def test_a_job_is_received_on_the_calling_thread():
    with connected() as (one, other):
        one.send_job("execute", 7)
        assert other.receive_job(read) == ("execute", 7)
        other.send_job("executed")
        assert one.receive_job(read) == ("executed",)


def test_a_job_is_received_after_earlier_events():
    came: list[int] = []
    with connected(other={"event": came.append}) as (one, other):
        for number in range(200):
            came.clear()
            for _ in range(number % 3):
                one.send("event", number)
            if number % 5 == 0:
                one.send_later("event", number)
            one.send_job("job")
            assert other.receive_job(read) == ("job",)
            assert came == [number] * (number % 3 + (number % 5 == 0))


def test_the_end_wakes_a_thread_that_waits_for_a_job():
    with connected() as (one, other):
        waiting = threading.Thread(target=one.shut)
        waiting.start()
        assert other.receive_job(read) is None
        waiting.join()


def test_a_job_that_waits_for_a_missing_event_ends_with_the_peer():
    with connected() as (one, other):
        one._jobs.send([1, [], "job"])
        threading.Thread(target=one.shut).start()
        assert other.receive_job(read) is None


@pytest.mark.parametrize("events", [0, 1], ids=["none", "one whose event never comes"])
def test_waiting_for_a_job_has_a_time_limit(events):
    with connected() as (one, other):
        if events:
            one._jobs.send([events, [], "job"])
        with pytest.raises(TimeoutError):
            other.receive_job(read, limit_s=0.001)


@pytest.mark.parametrize("job", [["job"], [0, [], "job"], [0, [64], "job"], [None, [], "job"]])
def test_a_job_that_cannot_be_read_ends_the_connection(job, caplog):
    with connected() as (one, other):
        one._jobs.send(job)
        assert other.receive_job(lambda: None) is None
        until(lambda: one._is_over and other._is_over)
    assert "a message that cannot be handled" in caplog.text


def test_blocks_are_freed_with_the_next_job():
    with connected() as (one, other):
        view = other.view(one.put(memoryview(bytes(MEGABYTE))), MEGABYTE)
        del view
        other.send_job("job")
        assert one.receive_job(read) == ("job",)
        assert one.put(memoryview(bytes(MEGABYTE))) == 0
