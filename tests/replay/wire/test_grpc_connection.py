"""gRPC connections of a load, with scripted servers."""

import struct

import pytest
from replay.wire.peers import OK, asked, grpc_loop
from support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    message,
    settings,
)


def test_responses_are_assigned_by_stream_in_any_order():
    def script(peer):
        first, second, third = (peer.call() for _ in range(3))
        assert [first, second, third] == [1, 3, 5]
        for stream in (second, third, first):
            peer.answer(stream)
        peer.answer(peer.call())

    with grpc_loop(script, in_flight=3) as loop:
        assert asked(loop, 3, 4) == [""] * 4


def test_a_failed_call_is_reported_and_the_next_one_succeeds():
    def script(peer):
        peer.answer(peer.call(), [("grpc-status", "3"), ("grpc-message", "no%20such%20input")])
        peer.send(frame(RST_STREAM, 0, peer.call(), struct.pack(">I", 8)))
        peer.answer(peer.call())

    with grpc_loop(script) as loop:
        assert asked(loop, 1, 3) == [
            "gRPC status 3: no such input",
            "the server reset the call: HTTP/2 error 8",
            "",
        ]


def test_a_new_connection_follows_a_goaway():
    def leaves(peer):
        first, second = peer.call(), peer.call()
        peer.send(frame(GOAWAY, 0, 0, struct.pack(">II", second, 0)))
        peer.answer(first)
        peer.answer(second)

    def goes_on(peer):
        for _ in range(3):
            peer.answer(peer.call())

    with grpc_loop(leaves, goes_on, in_flight=2) as loop:
        assert asked(loop, 2, 5) == [""] * 5


def test_calls_after_a_goaway_fail():
    def script(peer):
        first = peer.call()
        peer.call()
        peer.send(frame(GOAWAY, 0, 0, struct.pack(">II", first, 0)))
        peer.answer(first)

    with grpc_loop(script, in_flight=2) as loop:
        reason = "the server accepts no more calls on the connection"
        assert sorted(asked(loop, 2, 2)) == ["", reason]


def test_a_broken_connection_is_opened_again():
    def breaks(peer):
        peer.call()

    with grpc_loop(breaks, lambda peer: peer.answer(peer.call())) as loop:
        assert asked(loop, 1, 2) == ["the server closed the connection", ""]


def test_control_frames_padding_and_continuations():
    def script(peer):
        stream = peer.call()
        peer.send(frame(PING, 0, 0, b"12345678"), frame(SETTINGS, 0, 0, struct.pack(">HI", 1, 0)))
        head, trailers = (peer.encoder.encode(fields) for fields in ([(":status", "200")], OK))
        peer.send(
            frame(HEADERS, PADDED | END_HEADERS, stream, b"\2" + head + b"\0\0"),
            frame(DATA, PADDED, stream, b"\1" + message(b"y") + b"\0"),
            frame(HEADERS, END_STREAM, stream, trailers[:2]),
            frame(CONTINUATION, END_HEADERS, stream, trailers[2:]),
        )
        peer.answer(peer.call())
        assert (peer.acks, peer.pongs) == (2, 1)

    with grpc_loop(script) as loop:
        assert asked(loop, 1, 2) == ["", ""]


def test_a_message_waits_for_flow_control():
    request = message(b"z" * 100_000)

    def script(peer):
        stream = peer.call(1000)
        assert len(peer.data[stream]) == 1000
        peer.send(settings(_4=80_000))
        peer.call(65_535)
        assert len(peer.data[stream]) == 65_535
        peer.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 100_000)))
        peer.call(80_000)
        peer.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 100_000)))
        peer.call(len(request))
        assert peer.data[stream] == request
        peer.answer(stream)

    with grpc_loop(script, opening=settings(_4=1000), request=request) as loop:
        assert asked(loop, 1, 1) == [""]


@pytest.mark.parametrize(
    "opening", [b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(PING, 0, 0, b"1" * 8)]
)
def test_a_server_with_another_protocol_is_reported(opening):
    with grpc_loop(lambda peer: peer.call(), opening=opening) as loop:
        (why,) = asked(loop, 1, 1)
        assert why.startswith("the response is not gRPC")
