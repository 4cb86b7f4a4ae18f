"""The end of a connection, told more than once: what a client was told it may rely on."""

import struct

from server.support.http2 import Peer
from support.http2 import END_HEADERS, END_STREAM, GOAWAY, PING, frame

from reference_server.frontends.grpc.http2.receiving import StreamGone

WHOLE = END_HEADERS | END_STREAM


def last_streams(peer):
    """The last stream that is served, of each GOAWAY that was sent since."""
    return [struct.unpack(">I", one.payload[:4])[0] for one in peer.took(GOAWAY)]


def test_streams_that_were_not_looked_at_are_never_said_to_be():
    peer = Peer()
    peer.say(peer.headers(1))
    peer.connection.end()
    peer.say(peer.headers(3, flags=WHOLE), peer.headers(5, flags=WHOLE))
    peer.connection.end()
    assert last_streams(peer) == [1, 1]


def test_an_end_that_comes_soon_is_not_told_after_one_that_came():
    peer = Peer()
    peer.say(peer.headers(1))
    peer.connection.end()
    peer.connection.announce_end()
    assert last_streams(peer) == [1, 1]


def test_a_fault_after_the_end_does_not_take_it_back():
    peer = Peer()
    peer.say(peer.headers(1))
    peer.connection.end()
    peer.say(peer.headers(3), frame(PING, 0, 1, bytes(8)))
    assert last_streams(peer) == [1, 1]
    assert peer.events[-2] == StreamGone(1)
