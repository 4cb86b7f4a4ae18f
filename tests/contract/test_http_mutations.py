"""Valid requests with changed bytes: the server survives, and judges them like the real server.

The seed is fixed, so that every run sends the same bytes.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import pytest
from contract.casebook import infer, tensor
from contract.mutations import reframed, requests
from contract.wire import ConnectionEnded, Reply, connect, read_reply
from support.mutations import mutated
from support.servers import Server

FRAMED, RAW, BOTH = 1_000, 400, 250
GOOD = infer("vector", tensor("X", "FP32", [2], [1, 2]), id="bystander")
# Requests that only the reference server refuses, for the reasons in differences.py.
REFUSED = (b"is out of range for", b"failed to decompress")


@dataclass
class Client:
    """A connection that is opened again when it was closed."""

    server: Server
    _connection: socket.socket | None = None
    _stream: BinaryIO | None = field(default=None)

    def ask(self, request: bytes) -> Reply | None:
        """Return the reply, or None if the server closed the connection."""
        if self._connection is None or self._stream is None:
            self._connection = connect(self.server.http)
            self._stream = self._connection.makefile("rb")
        try:
            self._connection.sendall(request)
            reply = read_reply(self._stream)
        except (ConnectionEnded, ConnectionResetError, BrokenPipeError):
            self.close()
            return None
        if (reply.header("Connection") or "").lower() == "close":
            self.close()
        return reply

    def close(self) -> None:
        if self._connection is not None and self._stream is not None:
            self._stream.close()
            self._connection.close()
        self._connection = self._stream = None


@contextlib.contextmanager
def client(server: Server) -> Iterator[Client]:
    """Open a client."""
    one = Client(server)
    try:
        yield one
    finally:
        one.close()


def last_words(server: Server, raw: bytes) -> bytes:
    """Send bytes, half-close, and return everything received until the server closes."""
    with connect(server.http) as connection, connection.makefile("rb") as stream:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            return stream.read()
        except (ConnectionResetError, BrokenPipeError):
            return b""


def test_no_request_harms_the_server_or_a_bystander(probed_reference: Server):
    before = len(probed_reference.log)
    dice, pool = random.Random(1), requests()
    with client(probed_reference) as one, client(probed_reference) as bystander:
        answer = bystander.ask(GOOD)
        assert answer is not None
        assert answer.status == 200
        for number in range(FRAMED):
            request = reframed(dice.choice(pool), dice)
            reply = one.ask(request)
            assert reply is not None, request
            assert reply.status in (200, 400, 404, 405, 415, 500, 501), (request, str(reply))
            if number % 100 == 0:
                assert bystander.ask(GOOD) == answer
    assert "Traceback" not in probed_reference.log[before:]


def test_no_bytes_harm_the_server_or_a_bystander(probed_reference: Server):
    before = len(probed_reference.log)
    dice, pool = random.Random(2), requests()
    with client(probed_reference) as bystander:
        answer = bystander.ask(GOOD)
        for number in range(RAW):
            raw = mutated(dice.choice(pool), dice)
            said = last_words(probed_reference, raw)
            assert said == b"" or said.startswith(b"HTTP/"), raw
            if number % 100 == 0:
                assert bystander.ask(GOOD) == answer
    assert "Traceback" not in probed_reference.log[before:]


@pytest.mark.oracle
def test_both_servers_judge_alike(probed_triton: Server, probed_reference: Server):
    # Parameters whose names are no text stop the real server's model; ours reads them escaped.
    pool = [request for request in requests(within=b"/infer") if b"/mirror/" not in request]
    dice = random.Random(3)
    with client(probed_triton) as triton, client(probed_reference) as reference:
        for _ in range(BOTH):
            request = reframed(dice.choice(pool), dice)
            real, ours = triton.ask(request), reference.ask(request)
            if ours is not None and any(text in ours.body for text in REFUSED):
                continue
            assert classified(ours) == classified(real), (request, str(real), str(ours))


def classified(reply: Reply | None) -> int | None:
    """Return the class of a reply's status."""
    return None if reply is None else reply.status // 100
