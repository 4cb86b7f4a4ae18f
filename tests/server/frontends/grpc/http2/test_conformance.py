"""Requirements of RFC 9113 for servers, row by row: bytes and the expected answer."""

import struct

import pytest
from server.support.http2 import GREETING, REQUEST, Peer
from support.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    settings,
)

from reference_server.frontends.grpc.http2.frames import ErrorCode, Limits
from reference_server.frontends.grpc.http2.receiving import ConnectionFailed, RequestStarted

WHOLE = END_HEADERS | END_STREAM
LIMITS = Limits()


def opened(flags=END_HEADERS, stream=1, fields=REQUEST):
    """Open a stream."""
    return lambda peer: peer.headers(stream, fields, flags)


def number(value):
    return struct.pack(">I", value)


def block(peer, fields=REQUEST):
    return peer.encoder.encode(fields)


def split_block(peer):
    whole = block(peer)
    return frame(HEADERS, END_STREAM, 1, whole[:9]), frame(CONTINUATION, END_HEADERS, 1, whole[9:])


#: Section, description, and the error that ends the connection. The steps are bytes, or functions
#: of the peer.
ENDS_THE_CONNECTION = [
    ("3.4 no SETTINGS first", [frame(PING, payload=bytes(8))], "PROTOCOL_ERROR", PREFACE),
    ("3.4 SETTINGS ACK first", [frame(SETTINGS, ACK)], "PROTOCOL_ERROR", PREFACE),
    ("3.4 another preface", [b"GET / HTTP/1.1\r\n\r\n"], "PROTOCOL_ERROR", b""),
    ("4.2 a frame too long", [frame(DATA, 0, 1, bytes(LIMITS.max_frame + 1))], "FRAME_SIZE_ERROR"),
    ("4.3 no HPACK", [frame(HEADERS, WHOLE, 1, b"\xff\xff\xff\xff\xff")], "COMPRESSION_ERROR"),
    ("4.3 an index of nothing", [frame(HEADERS, WHOLE, 1, b"\xfe")], "COMPRESSION_ERROR"),
    ("4.3 a frame within a block", [opened(0), frame(PING, payload=bytes(8))], "PROTOCOL_ERROR"),
    ("4.3 another stream within a block",
     [opened(0), frame(CONTINUATION, END_HEADERS, 3)], "PROTOCOL_ERROR"),
    ("5.1 DATA on an idle stream", [frame(DATA, 0, 1)], "PROTOCOL_ERROR"),
    ("5.1 RST_STREAM on an idle stream", [frame(RST_STREAM, 0, 1, number(8))], "PROTOCOL_ERROR"),
    ("5.1 WINDOW_UPDATE on an idle stream",
     [frame(WINDOW_UPDATE, 0, 1, number(1))], "PROTOCOL_ERROR"),
    ("5.1 HEADERS on a closed stream",
     [opened(), frame(RST_STREAM, 0, 1, number(8)), opened()], "STREAM_CLOSED"),
    ("5.1.1 an even stream", [opened(WHOLE, 2)], "PROTOCOL_ERROR"),
    ("5.1.1 a stream before the last", [opened(WHOLE, 3), opened(WHOLE, 1)], "STREAM_CLOSED"),
    ("6.1 DATA on stream 0", [frame(DATA, 0, 0, b"x")], "PROTOCOL_ERROR"),
    ("6.1 padding as long as the frame",
     [opened(), frame(DATA, PADDED, 1, b"\x03ab")], "PROTOCOL_ERROR"),
    ("6.1 no length of the padding", [opened(), frame(DATA, PADDED, 1)], "FRAME_SIZE_ERROR"),
    ("6.2 HEADERS on stream 0", [opened(WHOLE, 0)], "PROTOCOL_ERROR"),
    ("6.2 HEADERS that go on, on stream 0", [opened(0, 0)], "PROTOCOL_ERROR"),
    ("6.2 padding longer than HEADERS",
     [frame(HEADERS, WHOLE | PADDED, 1, b"\x09ab")], "PROTOCOL_ERROR"),
    ("6.2 half a priority", [frame(HEADERS, WHOLE | PRIORITISED, 1, b"abc")], "FRAME_SIZE_ERROR"),
    ("5.3.1 HEADERS that depend on themselves",
     [frame(HEADERS, WHOLE | PRIORITISED, 1, number(1) + b"\0")], "PROTOCOL_ERROR"),
    ("6.3 PRIORITY on stream 0", [frame(PRIORITY, 0, 0, bytes(5))], "PROTOCOL_ERROR"),
    ("6.4 RST_STREAM on stream 0", [frame(RST_STREAM, 0, 0, number(8))], "PROTOCOL_ERROR"),
    ("6.4 RST_STREAM of three bytes",
     [opened(), frame(RST_STREAM, 0, 1, b"abc")], "FRAME_SIZE_ERROR"),
    ("6.5 SETTINGS on a stream", [frame(SETTINGS, 0, 1)], "PROTOCOL_ERROR"),
    ("6.5 SETTINGS of five bytes", [frame(SETTINGS, 0, 0, bytes(5))], "FRAME_SIZE_ERROR"),
    ("6.5 an ACK with settings", [frame(SETTINGS, ACK, 0, bytes(6))], "FRAME_SIZE_ERROR"),
    ("6.5.2 ENABLE_PUSH of 2", [settings(_2=2)], "PROTOCOL_ERROR"),
    ("6.5.2 a window of 32 bits", [settings(_4=2**31)], "FLOW_CONTROL_ERROR"),
    ("6.5.2 MAX_FRAME_SIZE too small", [settings(_5=16_383)], "PROTOCOL_ERROR"),
    ("6.5.2 MAX_FRAME_SIZE too large", [settings(_5=2**24)], "PROTOCOL_ERROR"),
    ("6.6 PUSH_PROMISE", [opened(), frame(PUSH_PROMISE, 4, 1, number(2))], "PROTOCOL_ERROR"),
    ("6.7 PING on a stream", [frame(PING, 0, 1, bytes(8))], "PROTOCOL_ERROR"),
    ("6.7 PING of seven bytes", [frame(PING, 0, 0, bytes(7))], "FRAME_SIZE_ERROR"),
    ("6.8 GOAWAY on a stream", [frame(GOAWAY, 0, 1, bytes(8))], "PROTOCOL_ERROR"),
    ("6.8 half a GOAWAY", [frame(GOAWAY, 0, 0, bytes(4))], "FRAME_SIZE_ERROR"),
    ("6.9 a window widened by nothing", [frame(WINDOW_UPDATE, 0, 0, number(0))], "PROTOCOL_ERROR"),
    ("6.9 WINDOW_UPDATE of three bytes",
     [frame(WINDOW_UPDATE, 0, 0, b"abc")], "FRAME_SIZE_ERROR"),
    ("6.9.1 the connection's window of 32 bits",
     [frame(WINDOW_UPDATE, 0, 0, number(2**31 - 1))], "FLOW_CONTROL_ERROR"),
    ("6.9.2 settings that make a window one of 32 bits",
     [opened(), frame(WINDOW_UPDATE, 0, 1, number(2**31 - 1 - 65_535)), settings(_4=65_536)],
     "FLOW_CONTROL_ERROR"),
    ("6.10 CONTINUATION of nothing", [frame(CONTINUATION, END_HEADERS, 1)], "PROTOCOL_ERROR"),
    ("6.10 CONTINUATION of a block that has ended",
     [opened(), frame(CONTINUATION, END_HEADERS, 1)], "PROTOCOL_ERROR"),
    ("10.5.1 a block that is too long",
     [frame(HEADERS, 0, 1, bytes(60_000)), frame(CONTINUATION, 0, 1, bytes(6_000))],
     "ENHANCE_YOUR_CALM"),
    ("10.5.1 HEADERS that are too long",
     [frame(HEADERS, WHOLE, 1, bytes(70_000))], "ENHANCE_YOUR_CALM"),
    ("10.5.1 a block of too many parts",
     [opened(0), *[frame(CONTINUATION, 0, 1)] * 17], "ENHANCE_YOUR_CALM"),
    ("10.5.1 little HPACK that is much",
     [opened(WHOLE, 1, [("a", "x" * 3_000)]), frame(HEADERS, WHOLE, 3, b"\xbe" * 100)],
     "ENHANCE_YOUR_CALM"),
]  # fmt: skip

ENDS_THE_STREAM = [
    ("5.1 DATA after the end", [opened(WHOLE), frame(DATA, 0, 1, b"x")], "STREAM_CLOSED"),
    ("5.1 HEADERS after the end", [opened(WHOLE), opened(WHOLE)], "STREAM_CLOSED"),
    ("5.1 DATA on a closed stream",
     [opened(), frame(RST_STREAM, 0, 1, number(8)), frame(DATA, 0, 1)], "STREAM_CLOSED"),
    ("6.3 PRIORITY of four bytes", [opened(), frame(PRIORITY, 0, 1, bytes(4))], "FRAME_SIZE_ERROR"),
    ("6.9 a window widened by nothing",
     [opened(), frame(WINDOW_UPDATE, 0, 1, number(0))], "PROTOCOL_ERROR"),
    ("6.9.1 a window of 32 bits",
     [opened(), frame(WINDOW_UPDATE, 0, 1, number(2**31 - 1))], "FLOW_CONTROL_ERROR"),
    ("8.1 trailers that do not end", [opened(), opened()], "PROTOCOL_ERROR"),
]  # fmt: skip

IS_FINE = [
    ("4.1 an unknown frame", [frame(0x4D, 0xFF, 7, b"abc")]),
    ("4.1 a reserved bit", [frame(PING, 0, 2**31, bytes(8))]),
    ("5.1 WINDOW_UPDATE on a closed stream",
     [opened(), frame(RST_STREAM, 0, 1, number(8)), frame(WINDOW_UPDATE, 0, 1, number(1))]),
    ("5.1 RST_STREAM twice", [opened(), *[frame(RST_STREAM, 0, 1, number(8))] * 2]),
    ("5.1 PRIORITY on an idle stream", [frame(PRIORITY, 0, 9, bytes(5))]),
    ("6.2 padding and priority",
     [lambda peer: frame(HEADERS, WHOLE | PADDED | PRIORITISED, 1,
                         b"\x02" + number(3) + b"\0" + block(peer) + b"ab")]),
    ("6.5 unknown settings", [settings(_77=1)]),
    ("6.5 an ACK", [frame(SETTINGS, ACK)]),
    ("6.7 the answer to a ping", [frame(PING, ACK, 0, bytes(8))]),
    ("6.8 GOAWAY", [frame(GOAWAY, 0, 0, bytes(8))]),
    ("6.10 a block in parts", [lambda peer: b"".join(split_block(peer))]),
    ("8.1 trailers", [opened(), opened(WHOLE, fields=[("a", "b")])]),
]  # fmt: skip


def play(steps, opening=GREETING):
    peer = Peer(greeting=opening if opening == GREETING else b"")
    if opening != GREETING:
        peer.say(opening)
        peer.take()
    for step in steps:
        peer.say(step(peer) if callable(step) else step)
    return peer


def lines(table):
    return [pytest.param(*row[1:], id=row[0]) for row in table]


@pytest.mark.parametrize(
    ("steps", "error", "opening"),
    [pytest.param(*(*row[1:], GREETING)[:3], id=row[0]) for row in ENDS_THE_CONNECTION],
)
def test_ends_the_connection(steps, error, opening):
    peer = play(steps, opening)
    *_, last = peer.take()
    assert last.kind == GOAWAY
    assert ErrorCode(int.from_bytes(last.payload[4:8], "big")).name == error
    assert isinstance(peer.events[-1], ConnectionFailed)
    assert peer.connection.open_streams == 0
    assert peer.say(peer.headers(99, flags=WHOLE)) == []
    assert peer.take() == []


@pytest.mark.parametrize(("steps", "error"), lines(ENDS_THE_STREAM))
def test_ends_only_the_stream(steps, error):
    peer = play(steps)
    (reset,) = [one for one in peer.take() if one.kind == RST_STREAM]
    assert reset.stream == 1
    assert ErrorCode(int.from_bytes(reset.payload, "big")).name == error
    assert peer.connection.open_streams == 0
    assert any(isinstance(event, RequestStarted) for event in peer.say(peer.headers(3)))


@pytest.mark.parametrize("steps", lines(IS_FINE))
def test_is_accepted(steps):
    peer = play(steps)
    assert not [one for one in peer.take() if one.kind in (GOAWAY, RST_STREAM)]
    assert any(isinstance(event, RequestStarted) for event in peer.say(peer.headers(11)))


def test_a_ping_is_answered_with_its_payload():
    peer = play([frame(PING, payload=b"abcdefgh")])
    assert [(one.flags, one.payload) for one in peer.take()] == [(ACK, b"abcdefgh")]


def test_settings_are_acknowledged():
    peer = play([settings(_4=70_000)])
    assert [(one.kind, one.flags) for one in peer.take()] == [(SETTINGS, ACK)]


def test_late_frames_of_a_stream_reset_by_the_server_are_accepted():
    peer = play([opened()])
    peer.connection.reset(1, ErrorCode.INTERNAL_ERROR)
    peer.take()
    peer.say(frame(DATA, 0, 1, b"late"), peer.headers(1, [("a", "b")], WHOLE))
    assert peer.take() == []


def test_streams_beyond_the_limit_are_refused():
    peer = Peer(Limits(max_streams=2))
    for stream in (1, 3, 5):
        peer.say(peer.headers(stream))
    (reset,) = peer.take()
    assert (reset.stream, reset.payload) == (5, number(ErrorCode.REFUSED_STREAM))
    peer.connection.finish(1, b"\x88")
    peer.say(peer.headers(7))
    assert peer.connection.open_streams == 2


def test_after_goaway_new_streams_are_ignored():
    peer = play([opened()])
    peer.connection.end()
    assert [one.payload for one in peer.take()] == [number(1) + number(0)]
    assert peer.say(peer.headers(3, flags=WHOLE)) == []
    peer.connection.finish(1, b"\x88")
    assert [one.kind for one in peer.take()] == [HEADERS, RST_STREAM]
    assert peer.connection.open_streams == 0
