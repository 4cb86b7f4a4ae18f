"""Repeated GOAWAY frames: the announced last stream is reliable."""

import struct

from server.support.http2 import Peer
from support.http2 import END_HEADERS, END_STREAM, GOAWAY, PING, frame

from reference_server.frontends.grpc.http2.receiving import StreamGone

WHOLE = END_HEADERS | END_STREAM


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
    assert peer.events[-2] == StreamGone(1)
