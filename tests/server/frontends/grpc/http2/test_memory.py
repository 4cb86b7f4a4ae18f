"""Memory of a connection: bounded for any client."""

import tracemalloc
import weakref

import numpy as np
import pytest
from server.support.http2 import Peer
from support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    frame,
)

from reference_server.frontends.grpc.http2.frames import ErrorCode, Limits

WHOLE = END_HEADERS | END_STREAM
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
