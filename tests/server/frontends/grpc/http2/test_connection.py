"""Robustness: no bytes of a client break the connection, and nothing is kept after the end."""

import struct

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
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    settings,
)

from reference_server.frontends.grpc.http2.frames import ConnectionFault, ErrorCode
from reference_server.frontends.grpc.http2.receiving import (
    ConnectionFailed,
    DataCame,
    RateAllowance,
    RequestBegan,
    RequestEnded,
    StreamGone,
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
            if isinstance(event, RequestBegan):
                assert event.stream_id not in live
                live.add(event.stream_id)
            elif isinstance(event, DataCame | RequestEnded):
                assert event.stream_id in live
            elif isinstance(event, StreamGone):
                live.remove(event.stream_id)
        assert peer.connection.open_streams == len(live)
        if peer.events and isinstance(peer.events[-1], ConnectionFailed):
            assert not live
    for event in list(peer.events):
        if isinstance(event, RequestBegan):
            peer.connection.finish(event.stream_id, b"\x88")
    assert peer.connection.open_streams == 0


@given(st.binary(max_size=300))
def test_no_bytes_break_it(data):
    peer = Peer()
    peer.say(data)
    peer.take()


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
        if isinstance(event, DataCame):
            bodies[event.stream_id] = bodies.get(event.stream_id, b"") + bytes(event.data)
            if not event.ended:
                continue
            event = event._replace(data=bodies[event.stream_id])
        found.append(event)
    return found


# -- floods


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


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("kind", "payload"),
    [(DATA, b"x"), (WINDOW_UPDATE, struct.pack(">I", 1))],
    ids=["data", "window"],
)
def test_tens_of_thousands_of_small_frames_are_accepted(kind, payload):
    peer = Peer()
    peer.say(peer.headers(1))
    for _ in range(10):
        peer.say(frame(kind, 0, 1, payload) * 10_000)
    assert GOAWAY not in [one.kind for one in peer.take()]
    peer.now_s += 1
    peer.say(frame(kind, 0, 1, payload) * 20_000)
    assert GOAWAY not in [one.kind for one in peer.take()]
    peer.say(frame(kind, 0, 1, payload))
    assert peer.take()[-1].kind == GOAWAY


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


@pytest.mark.brute_force
def test_older_streams_may_be_reset_in_any_number():
    peer = Peer()
    for count in range(30):
        streams = range(1 + 200 * count, 200 * count + 201, 2)
        for stream in streams:
            peer.say(peer.headers(stream))
        peer.now_s += 0.05
        peer.say(*(frame(RST_STREAM, 0, stream, struct.pack(">I", 8)) for stream in streams))
    assert peer.take() == []


@pytest.mark.brute_force
def test_the_rest_of_a_rejected_request_is_accepted():
    peer = Peer()
    for stream in range(1, 20_201, 2):
        peer.say(peer.headers(stream))
        peer.connection.finish(stream, b"\x88")
        peer.say(frame(DATA, END_STREAM, stream, b"abc"))
    assert GOAWAY not in [one.kind for one in peer.take()]


def test_an_allowance_is_limited_to_its_burst():
    allowance = RateAllowance("things", burst=2, per_s=1)
    allowance.spend(0)
    allowance.spend(1_000)
    allowance.spend(1_000)
    with pytest.raises(ConnectionFault, match="too many things"):
        allowance.spend(1_000)


def test_an_incomplete_block_has_a_limit():
    peer = Peer()
    peer.say(peer.headers(1, flags=0))
    peer.say(*[frame(CONTINUATION, 0, 1, b"")] * 20)
    assert peer.take()[-1].kind == GOAWAY


def test_a_failed_connection_ignores_further_bytes():
    peer = Peer()
    peer.say(peer.headers(1), frame(HEADERS, WHOLE, 2, b"\x88"))
    peer.take()
    assert peer.events[-2:] == [StreamGone(1), peer.events[-1]]
    peer.connection.finish(1, b"\x88")
    peer.connection.resume()
    assert peer.take() == []
    assert "failed" in repr(peer.connection)
