"""Flow control: what is sent, when it is sent, and that all of it arrives."""

import struct

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st
from server.support.http2 import Peer
from support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
    frame,
    settings,
)

from reference_server.frontends.grpc.http2 import header_blocks
from reference_server.frontends.grpc.http2.frames import ErrorCode, Limits
from reference_server.frontends.grpc.http2.receiving import DataReceived, StreamEnded

HEAD = header_blocks.write([(b":status", b"200")])
TAIL = header_blocks.write([(b"grpc-status", b"0")])
WHOLE = END_HEADERS | END_STREAM
WINDOW = 65_535


def asking(*streams, **given):
    """A client that has sent requests on these streams."""
    peer = Peer()
    if given:
        peer.say(settings(**given))
    for stream in streams:
        peer.say(peer.headers(stream, flags=WHOLE))
    peer.take()
    return peer


def widen(stream, size):
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def test_a_short_response_is_one_buffer():
    peer = asking(1)
    peer.connection.reply(1, HEAD, (b"abc", b"def"), TAIL)
    (buffer,) = peer.connection.take_output()
    assert buffer == (
        frame(HEADERS, END_HEADERS, 1, HEAD)
        + frame(DATA, 0, 1, b"abcdef")
        + frame(HEADERS, WHOLE, 1, TAIL)
    )
    assert peer.connection.open_streams == 0


def test_a_long_response_is_not_copied():
    peer = asking(1, _4=1 << 24, _5=1 << 20)
    peer.say(widen(0, 1 << 24))
    long = bytes(1 << 18)
    peer.connection.reply(1, HEAD, (b"12345", long), TAIL)
    output = peer.connection.take_output()
    assert any(part is long for part in output)


def test_streams_that_wait_for_the_connections_window_take_turns():
    peer = asking(1, 3, 5)
    for stream in (1, 3, 5):
        peer.connection.reply(stream, HEAD, (bytes(100_000),), TAIL)
    peer.take()
    peer.say(widen(1, 1 << 20), widen(3, 1 << 20))
    peer.say(widen(0, 6 * 16_384))
    order = [one.stream for one in peer.took(DATA)]
    assert sorted(order) == [1, 1, 3, 3, 5, 5] if 5 in order else order == [1, 3, 1, 3, 1, 3]


def test_a_smaller_table_is_confirmed():
    peer = Peer()
    peer.say(settings(_1=0), peer.headers(1, flags=WHOLE), peer.headers(3, flags=WHOLE))
    peer.take()
    for stream in (1, 3):
        peer.connection.finish(stream, TAIL)
    first, second = peer.took(HEADERS)
    assert (first.payload, second.payload) == (b"\x20" + TAIL, TAIL)
    decoder = Decoder()
    decoder.max_allowed_table_size = 0
    assert decoder.decode(first.payload) == [("grpc-status", "0")]


def test_a_long_block_has_continuation_frames():
    peer = asking(1)
    block = header_blocks.write([(b"grpc-message", b"x" * 40_000)])
    peer.connection.finish(1, block)
    frames = peer.take()
    assert [one.kind for one in frames] == [HEADERS, CONTINUATION, CONTINUATION]
    assert [one.flags for one in frames] == [END_STREAM, 0, END_HEADERS]
    assert b"".join(one.payload for one in frames) == block


def test_trailers_do_not_wait_behind_another_streams_data():
    peer = asking(1, 3)
    peer.connection.reply(1, HEAD, (bytes(WINDOW + 1),), TAIL)
    peer.connection.pause()
    peer.connection.finish(3, TAIL)
    peer.take()
    peer.connection.resume()
    assert [one.stream for one in peer.take()] == [3]


def test_nothing_is_sent_on_an_ended_stream():
    peer = asking(1)
    peer.say(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
    assert peer.events[-1] == StreamEnded(1)
    peer.connection.reply(1, HEAD, (b"abc",), TAIL)
    peer.connection.headers(1, HEAD)
    peer.connection.data(1, b"abc")
    peer.connection.finish(1, TAIL)
    peer.connection.reset(1, ErrorCode.CANCEL)
    assert peer.take() == []


def test_windows_are_refilled_in_large_steps():
    limits = Limits(stream_window=1_000, connection_window=100_000)
    peer = Peer(limits)
    peer.say(peer.headers(1))
    for _ in range(10):
        peer.say(frame(DATA, 0, 1, bytes(100)))
    updates = peer.took(WINDOW_UPDATE)
    assert [(one.stream, int.from_bytes(one.payload, "big")) for one in updates] == [
        (1, 500),
        (1, 500),
    ]


def test_a_stream_that_has_ended_is_not_refilled():
    peer = Peer(Limits(stream_window=1_000))
    peer.say(peer.headers(1), frame(DATA, END_STREAM, 1, bytes(900)))
    assert peer.took(WINDOW_UPDATE) == []


@pytest.mark.parametrize(
    ("limits", "kind"),
    [(Limits(stream_window=99_999), RST_STREAM), (Limits(connection_window=99_999), GOAWAY)],
    ids=["stream", "connection"],
)
def test_more_than_the_window_is_an_error(limits, kind):
    peer = Peer(limits)
    peer.say(peer.headers(1), frame(DATA, 0, 1, bytes(100_000)))
    (last,) = [one for one in peer.take() if one.kind != WINDOW_UPDATE]
    code = last.payload[4:8] if kind == GOAWAY else last.payload
    assert (last.kind, int.from_bytes(code, "big")) == (kind, ErrorCode.FLOW_CONTROL_ERROR)


def test_a_client_that_does_not_read_gets_no_window():
    peer = Peer(Limits(stream_window=1_000))
    peer.say(peer.headers(1))
    peer.connection.headers(1, HEAD)
    peer.connection.data(1, bytes(WINDOW + (1 << 22) + 1))
    peer.take()
    peer.say(frame(DATA, 0, 1, bytes(900)))
    assert peer.took(WINDOW_UPDATE) == []
    peer.say(widen(1, 1 << 24), widen(0, 1 << 24))
    assert [one.stream for one in peer.took(WINDOW_UPDATE)] == [1]


def test_padding_counts_for_the_window():
    peer = Peer(Limits(stream_window=1_000))
    peer.say(peer.headers(1), frame(DATA, 8, 1, b"\xff" + b"ab" + bytes(255)))
    peer.say(frame(DATA, 8, 1, b"\xff" + b"cd" + bytes(255)))
    came = [bytes(event.data) for event in peer.events if isinstance(event, DataReceived)]
    assert came == [b"ab", b"cd"]
    (update,) = peer.took(WINDOW_UPDATE)
    assert int.from_bytes(update.payload, "big") == 516


@given(
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=6),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("connection"), st.integers(1, 50_000)),
            st.tuples(st.just("stream"), st.integers(0, 5), st.integers(1, 50_000)),
            st.tuples(st.just("initial"), st.integers(0, 100_000)),
            st.just(("pause",)),
            st.just(("resume",)),
        ),
        max_size=20,
    ),
)
def test_all_bytes_arrive_and_no_window_is_exceeded(sizes, steps):
    streams = [1 + 2 * index for index in range(len(sizes))]
    initial, connection = WINDOW, WINDOW
    windows = dict.fromkeys(streams, WINDOW)
    peer = asking(*streams)
    data = {stream: bytes([stream]) * size for stream, size in zip(streams, sizes, strict=True)}
    arrived = dict.fromkeys(streams, b"")
    ended = set()

    def look():
        nonlocal connection
        for one in peer.take():
            if one.kind == DATA:
                arrived[one.stream] += one.payload
                windows[one.stream] -= len(one.payload)
                connection -= len(one.payload)
                assert min(windows[one.stream], connection) >= 0
                assert one.stream not in ended
            elif one.kind == HEADERS and one.flags & END_STREAM:
                ended.add(one.stream)

    for stream in streams:
        peer.connection.reply(stream, HEAD, (data[stream],), TAIL)
        look()
    for step in steps:
        if step[0] == "connection":
            connection += step[1]
            peer.say(widen(0, step[1]))
        elif step[0] == "stream" and streams[step[1] % len(streams)] not in ended:
            windows[streams[step[1] % len(streams)]] += step[2]
            peer.say(widen(streams[step[1] % len(streams)], step[2]))
        elif step[0] == "initial":
            for stream in streams:
                windows[stream] += step[1] - initial
            initial = step[1]
            peer.say(settings(_4=step[1]))
        elif step[0] == "pause":
            peer.connection.pause()
        elif step[0] == "resume":
            peer.connection.resume()
        look()
    peer.connection.resume()
    look()
    for stream in streams:
        if stream not in ended:
            windows[stream] += 1 << 24
            peer.say(widen(stream, 1 << 24))
    connection += 1 << 24
    peer.say(widen(0, 1 << 24))
    look()
    assert arrived == data
    assert ended == set(streams)
    assert peer.connection.open_streams == 0
