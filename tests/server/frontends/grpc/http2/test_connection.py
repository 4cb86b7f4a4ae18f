"""Robustness: no bytes of a client break the connection, and nothing is kept after the end."""

import struct
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.http2 import GREETING, Peer
from support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    settings,
)

from reference_server.frontends.grpc.http2 import sending
from reference_server.frontends.grpc.http2.frames import ConnectionFault, ErrorCode, Limits
from reference_server.frontends.grpc.http2.receiving import (
    ConnectionFailed,
    DataReceived,
    RateAllowance,
    RequestEnded,
    RequestStarted,
    StreamEnded,
)

WHOLE = END_HEADERS | END_STREAM

some_frames = st.tuples(
    st.integers(0, 11), st.integers(0, 255), st.integers(0, 8), st.binary(max_size=40)
).map(lambda one: frame(*one))
good_frames = st.sampled_from(["headers", "whole", "data", "last", "reset", "update", "settings"])


def made(peer, step, stream):
    """Return a frame that may be valid."""
    number = struct.pack(">I", 8)
    return {
        "headers": lambda: peer.headers(stream),
        "whole": lambda: peer.headers(stream, flags=WHOLE),
        "data": lambda: frame(DATA, 0, stream, b"abc"),
        "last": lambda: frame(DATA, END_STREAM, stream, b"abc"),
        "reset": lambda: frame(RST_STREAM, 0, stream, number),
        "update": lambda: frame(WINDOW_UPDATE, 0, stream, number),
        "settings": lambda: settings(_4=stream),
    }[step]()


@pytest.mark.brute_force
@given(st.lists(st.one_of(some_frames, st.tuples(good_frames, st.integers(0, 9))), max_size=30))
def test_no_frames_break_it_and_every_stream_is_reported_once(steps):
    peer = Peer()
    for step in steps:
        peer.say(step if isinstance(step, bytes) else made(peer, *step))
        peer.take()  # fails unless there are whole frames
        live = set()
        for event in peer.events:
            if isinstance(event, RequestStarted):
                assert event.stream_id not in live
                live.add(event.stream_id)
            elif isinstance(event, DataReceived | RequestEnded):
                assert event.stream_id in live
            elif isinstance(event, StreamEnded):
                live.remove(event.stream_id)
        assert peer.connection.open_streams == len(live)
        if peer.events and isinstance(peer.events[-1], ConnectionFailed):
            assert not live
    for event in list(peer.events):
        if isinstance(event, RequestStarted):
            peer.connection.finish(event.stream_id, b"\x88")
    assert peer.connection.open_streams == 0


@pytest.mark.brute_force
@given(st.lists(st.integers(1, 400), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_events(cuts):
    peer = Peer(greeting=b"")
    wire = b"".join(
        (
            GREETING,
            peer.headers(1),
            frame(DATA, 0, 1, b"first"),
            frame(PING, 0, 0, bytes(8)),
            peer.headers(3, flags=WHOLE),
            frame(DATA, END_STREAM, 1, b"second"),
            peer.headers(5),
            frame(RST_STREAM, 0, 5, bytes(4)),
        )
    )
    whole = Peer(greeting=b"")
    whole.say(wire)
    position = 0
    for cut in (*cuts, len(wire)):
        peer.say(wire[position : position + cut])
        position += cut
    assert joined_events(peer) == joined_events(whole)
    assert b"".join(peer.connection.take_output()) == b"".join(whole.connection.take_output())


def joined_events(peer):
    """Return the events, with the pieces of each body joined."""
    found = []
    bodies = {}
    for event in peer.events:
        if isinstance(event, DataReceived):
            bodies[event.stream_id] = bodies.get(event.stream_id, b"") + bytes(event.data)
            if not event.ended:
                continue
            event = event._replace(data=bodies[event.stream_id])
        found.append(event)
    return found


#: The allowance that is left after the SETTINGS of the greeting.
IDLE = 10_000 - 10


def allowance_of(flood):
    """Return the number of frames of a flood that are accepted at once, and the error."""
    peer = Peer()
    for count in range(20_000):
        peer.say(*flood(peer, count))
        frames = peer.take()
        if frames and frames[-1].kind == GOAWAY:
            assert frames[-1].payload[4:8] == struct.pack(">I", ErrorCode.ENHANCE_YOUR_CALM)
            assert peer.connection.open_streams == 0
            return count
    return None


def rapid_reset(peer, count):
    stream = 1 + 2 * count
    return peer.headers(stream), frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


def on_one_stream(kind, payload=b""):
    def flood(peer, count):
        return *([peer.headers(1)] if count == 0 else ()), frame(kind, 0, 1, payload)

    return flood


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("flood", "taken"),
    [
        (rapid_reset, 2_000),
        (lambda peer, count: [frame(PING, 0, 0, bytes(8))], IDLE),
        (lambda peer, count: [frame(SETTINGS)], 999),
        (lambda peer, count: [frame(PRIORITY, 0, 3, bytes(5))], IDLE),
        (lambda peer, count: [frame(0x4D)], IDLE),
        (on_one_stream(DATA), IDLE),
        (on_one_stream(WINDOW_UPDATE, struct.pack(">I", 1)), None),
    ],
    ids=["reset", "ping", "settings", "priority", "unknown", "empty", "window"],
)
def test_floods(flood, taken):
    assert allowance_of(flood) == taken


def test_settings_cost_more_with_more_open_streams():
    peer = Peer()
    for stream in range(1, 2_001, 2):
        peer.say(peer.headers(stream))
    taken = 0
    while not any(one.kind == GOAWAY for one in peer.take()):
        peer.say(settings(_4=taken))
        taken += 1
    assert taken == 1 + IDLE // (10 + 100)


def test_a_slow_flood_is_accepted():
    peer = Peer()
    for count in range(3_000):
        peer.now_s += 0.002
        peer.say(*rapid_reset(peer, count))
        peer.take()
    assert peer.connection.receive(memoryview(peer.headers(9_999)), peer.now_s)


def test_an_allowance_is_limited_to_its_burst():
    allowance = RateAllowance("things", burst=2, per_s=1)
    allowance.spend(0)
    allowance.spend(1_000)
    allowance.spend(1_000)
    with pytest.raises(ConnectionFault, match="too many things"):
        allowance.spend(1_000)


def test_a_failed_connection_ignores_further_bytes():
    peer = Peer()
    peer.say(peer.headers(1), frame(HEADERS, WHOLE, 2, b"\x88"))
    peer.take()
    assert peer.events[-2:] == [StreamEnded(1), peer.events[-1]]
    peer.connection.finish(1, b"\x88")
    peer.connection.resume()
    assert peer.take() == []
    assert "failed" in repr(peer.connection)


def last_streams(peer):
    """Return the last stream of each GOAWAY that was sent since the last call."""
    return [struct.unpack(">I", one.payload[:4])[0] for one in peer.took(GOAWAY)]


def test_ignored_streams_are_never_announced_as_served():
    peer = Peer()
    peer.say(peer.headers(1))
    peer.connection.end()
    peer.say(peer.headers(3, flags=WHOLE), peer.headers(5, flags=WHOLE))
    peer.connection.end()
    assert last_streams(peer) == [1, 1]


def test_an_announcement_does_not_follow_the_end():
    peer = Peer()
    peer.say(peer.headers(1))
    peer.connection.end()
    peer.connection.announce_end()
    assert last_streams(peer) == [1, 1]


def test_an_error_after_the_end_does_not_change_the_last_stream():
    peer = Peer()
    peer.say(peer.headers(1))
    peer.connection.end()
    peer.say(peer.headers(3), frame(PING, 0, 1, bytes(8)))
    assert last_streams(peer) == [1, 1]
    assert peer.events[-2] == StreamEnded(1)


MUCH = 2**20


def test_received_bytes_are_not_kept():
    peer = Peer()
    received = bytearray(peer.headers(1) + frame(DATA, 0, 1, b"abc"))
    assert len(peer.connection.receive(memoryview(received), 0.0)) == 2
    received += b"it could not grow if anybody looked at it"


@pytest.mark.parametrize("what", ["a block", "a frame"])
def test_split_frames_are_not_kept(what):
    peer = Peer()
    if what == "a block":
        whole = peer.encoder.encode([("a", "~" * 50_000)], huffman=False)
        parts = (
            frame(HEADERS, 0, 1, whole[:6_000]),
            frame(CONTINUATION, END_HEADERS, 1, whole[6_000:]),
        )
    else:
        whole = peer.headers(1) + frame(DATA, PADDED, 1, bytes(MUCH - 1))
        parts = whole[:1_000], whole[1_000:]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for part in parts:
            peer.connection.receive(memoryview(part), 0.0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000


def test_queued_bytes_of_a_lost_connection_are_freed():
    peer = Peer()
    peer.say(peer.headers(1))
    answer = np.zeros(MUCH, np.uint8)
    is_kept = weakref.ref(answer)
    peer.connection.data(1, answer.data)
    del answer
    assert is_kept() is not None
    peer.connection.lost()
    assert is_kept() is None
    assert peer.connection.open_streams == 0


def refuse(peer, streams):
    """Have requests rejected one by one, until the connection ends; return the sent bytes."""
    sent = 0
    for stream in streams:
        peer.say(peer.headers(stream))
        peer.connection.reset(stream, ErrorCode.INTERNAL_ERROR)
        frames = peer.take()
        sent += sum(9 + len(one.payload) for one in frames)
        if GOAWAY in [one.kind for one in frames]:
            assert frames[-1].payload[8:] == b"the client does not read control frames"
            return sent
    return None


def test_output_for_a_client_that_reads_nothing_is_limited():
    peer = Peer(Limits(max_unread=1_000))
    peer.connection.pause()
    assert 1_000 < refuse(peer, range(1, 1_000, 2)) < 1_100


def test_output_for_a_client_that_reads_slowly_is_not_limited():
    peer = Peer(Limits(max_unread=1_000))
    for start in range(1, 1_001, 100):
        peer.connection.pause()
        assert refuse(peer, range(start, start + 100, 2)) is None
        peer.connection.resume()


def test_late_data_is_accepted_on_a_limited_number_of_rejected_streams(monkeypatch):
    monkeypatch.setattr(sending, "_REMEMBERED", 10)
    peer = Peer()
    for stream in range(1, 41, 2):
        peer.say(peer.headers(stream))
        peer.connection.finish(stream, b"\x88")
        peer.say(frame(DATA, END_STREAM, stream, b"abc"))
    assert GOAWAY not in [one.kind for one in peer.take()]
