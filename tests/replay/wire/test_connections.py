"""Connections of a load with scripted servers, and its loop."""

import struct
import time

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st
from replay.wire.peers import OK, asked, grpc_loop, http_loop
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

from triton_replay.wire.http2 import HeaderBlocks
from triton_replay.wire.http_connection import HttpConnection

# -- gRPC


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


# -- header blocks: cached ones equal newly decoded ones


NAMES = st.sampled_from([":status", "grpc-status", "content-type", "x-a", "x-" + "b" * 200])
VALUES = st.sampled_from(["200", "0", "", "application/grpc", "c" * 300])
FIELDS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=4)


@given(st.lists(FIELDS, max_size=30), st.lists(st.integers(0, 29), max_size=5))
def test_blocks_are_decoded_like_by_hpack(blocks, resizes):
    encoder, plain, blocks_of = Encoder(), Decoder(), HeaderBlocks()
    plain.max_allowed_table_size = 2**24
    for number, fields in enumerate(blocks):
        if number in resizes:
            encoder.header_table_size = 64 * number
        block = encoder.encode(fields)
        expected = tuple((n.decode(), v.decode()) for n, v in plain.decode(block, raw=True))
        assert blocks_of.decode(block) == expected


def test_a_repeated_block_returns_the_same_object():
    encoder, blocks = Encoder(), HeaderBlocks()
    fields = [("grpc-status", "0")]
    first = blocks.decode(encoder.encode(fields))
    second, third = (blocks.decode(encoder.encode(fields)) for _ in range(2))
    assert first == second
    assert second is third


# -- HTTP


HTTP_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_responses_are_counted_in_any_pieces():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" + HTTP_OK
    with http_loop([HTTP_OK, chunked, interim, HTTP_OK]) as loop:
        assert asked(loop, 1, 4) == [""] * 4


def test_a_connection_closed_by_the_server_is_opened_again():
    closing = HTTP_OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    with http_loop([closing], [HTTP_OK]) as loop:
        assert asked(loop, 1, 2) == ["", ""]


def test_a_failure_is_reported_with_the_servers_text():
    refused = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 9\r\n\r\n" + b'{"error"}'
    with http_loop([refused, HTTP_OK[:-1]], [b"SSH-2.0\r\n"], [HTTP_OK]) as loop:
        assert asked(loop, 1, 4)[:2] == ['400: {"error"}', "the server closed the connection"]
        assert loop.record.failed[2].startswith("the response is not HTTP")
        assert 3 not in loop.record.failed


@pytest.mark.parametrize("callback", ["on_body", "on_message_complete"])
def test_an_interrupt_in_a_parser_callback_is_raised(callback, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(HttpConnection, callback, interrupt)
    with http_loop([HTTP_OK]) as loop, pytest.raises(KeyboardInterrupt):
        asked(loop, 1, 1)


# -- the loop: requests in flight, and the start of latencies


NEVER = 2**63 - 1


def test_a_closed_loop_keeps_its_number_of_requests_in_flight():
    def script(peer):
        waiting = [peer.call() for _ in range(3)]
        for _ in range(3):
            peer.answer(waiting.pop(0))
            waiting.append(peer.call())
        for stream in waiting:
            peer.answer(stream)

    with grpc_loop(script, in_flight=3) as loop:
        assert asked(loop, 3, 6) == [""] * 6


def test_the_wait_of_a_due_request_counts_as_latency():
    """Three requests are overdue and one may be in flight: no coordinated omission."""

    def script(peer):
        for _ in range(3):
            peer.answer(peer.call())

    with grpc_loop(script) as loop:
        now = time.perf_counter_ns()
        dues = [now - 3_000_000_000, now - 2_000_000_000, now - 1_000_000_000]
        loop.follow(iter(dues), limit=1)
        loop.run(NEVER, 3)
        assert list(loop.record.starts) == dues
        assert all(end >= now for end in loop.record.ends)
        # The first could have been sent in time, the others waited for the server.
        assert loop.record.late == 1


def test_requests_that_wait_at_the_end_are_counted_and_not_sent():
    def script(peer):
        peer.answer(peer.call())

    with grpc_loop(script) as loop:
        now = time.perf_counter_ns()
        loop.follow(iter([now, now, now]), limit=1)
        loop.run(now + 1)
        assert loop.stop() == 2
        loop.drain()
        assert len(loop.record.ends) == 1
