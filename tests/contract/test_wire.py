"""The instruments themselves: what they keep of a reply, and how they tell an end."""

from __future__ import annotations

import io
import socket
import struct
import threading

import pytest
from contract.wire import ConnectionEnded, exchange, read_reply
from support.http2 import GOAWAY, PING, SETTINGS, RawConnection, frame

LIVE_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", b"abc"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nabc", b""),
        (b"HTTP/1.0 200 OK\r\n\r\nall of it", b"all of it"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n", b""),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            b"abc",
        ),
    ],
)
def test_a_body_ends_where_its_framing_says(sent: bytes, body: bytes):
    assert read_reply(io.BytesIO(sent)).body == body


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1"]
)
def test_a_reply_cut_short_is_the_end_of_the_connection(sent: bytes):
    with pytest.raises(ConnectionEnded):
        read_reply(io.BytesIO(sent))


@pytest.mark.parametrize(
    ("answers", "replies", "stays_open"),
    [
        (LIVE_REPLY * 2, 1, True),
        (LIVE_REPLY, 1, False),
        (b"", 0, False),
    ],
)
def test_an_exchange_records_replies_and_the_end(answers: bytes, replies: int, stays_open: bool):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer_once, args=(listener, answers))
        server.start()
        record = exchange(f"127.0.0.1:{listener.getsockname()[1]}", b"GET / HTTP/1.1\r\n\r\n")
        server.join()
    assert (len(record.replies), record.stays_open) == (replies, stays_open)


def answer_once(listener: socket.socket, answers: bytes) -> None:
    """Answer one connection with these bytes, and read on until the client has all it wants."""
    connection, _ = listener.accept()
    with connection:
        connection.sendall(answers)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def test_last_words_are_read_though_nobody_takes_an_acknowledgement():
    ping, reason = frame(PING, payload=bytes(8)), b"too_many_pings"
    goaway = frame(GOAWAY, payload=struct.pack(">II", 1, 11) + reason)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        RawConnection(f"127.0.0.1:{listener.getsockname()[1]}") as client,
    ):
        server, _ = listener.accept()
        server.sendall(frame(SETTINGS) + ping + goaway)
        # Closed with a reset, as by a server that has not read all that it was sent.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
        assert client.until_goaway() == (1, 11, reason)
        client.until_closed()
