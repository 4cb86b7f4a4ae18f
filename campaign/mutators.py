"""Good requests with bytes changed, over live connections; a connection that does harm is reduced.

A connection's bytes are what is judged and kept: sent again to a new server they do the same.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from contract.grpc_casebook import GrpcCall
from contract.mutations import good_calls, reframed, requests
from contract.wire import ConnectionEnded, read_reply
from hpack import Encoder
from support.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    frame,
    head,
    message,
)
from support.mutations import mutated

from benchmarks.bystanders import SERVICE, connected
from campaign.defects import Defect
from campaign.ground import Ground

STATUSES = frozenset((200, 400, 404, 405, 415, 431, 500, 501, 503))
TOGETHER = 16
"""Requests of a connection; they are sent in one piece, and answered in order."""
ANSWER_S = 20.0
"""Longer than any answer takes; then the server hangs."""
_GREETING = PREFACE + frame(SETTINGS)
_CALLS_THAT_CHANGE_NOTHING = (
    *("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"),
    *("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex"),
)


@dataclass(frozen=True)
class Harm(Exception):
    """A connection that was not answered as it should be."""

    kind: str
    """The front it goes to: `http` or `grpc`."""
    sent: bytes
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def everything_said(address: str, sent: bytes) -> bytes:
    """Send bytes and nothing more; all that comes back until the server closes. Raises Defect."""
    with connected(address) as client:
        client.settimeout(ANSWER_S)
        said = bytearray()
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(1 << 20):
                said += piece
        except TimeoutError as error:
            raise Defect(f"no answer, and no end, within {ANSWER_S:.0f} s") from error
        except OSError:  # it was sent away before it had said all
            pass
        return bytes(said)


def check_http(address: str, sent: bytes) -> int:
    """Send bytes over HTTP; how many answers came. Raises Defect for what is none."""
    said = everything_said(address, sent)
    if said and not said.startswith(b"HTTP/"):
        raise Defect(f"answered {said[:80]!r}")
    return said.count(b"HTTP/")


def check_grpc(address: str, sent: bytes) -> int:
    """Send bytes behind a greeting of HTTP/2; how many streams were answered. Raises Defect."""
    said = everything_said(address, _GREETING + sent)
    streams: set[int] = set()
    while said:
        length = int.from_bytes(said[:3], "big")
        if len(said) < 9 + length:
            break  # it was sent away
        if said[3] > 9:
            raise Defect(f"answered a frame {said[:9]!r}")
        streams.add(int.from_bytes(said[5:9], "big"))
        said = said[9 + length :]
    return len(streams - {0})


# -- the attacks


def mutated_requests(ground: Ground) -> str:
    """Bodies and targets of good HTTP requests with bytes changed: each is answered, in order."""
    pool = requests()
    count = 0
    for _ in ground.over():
        pieces = [reframed(ground.dice.choice(pool), ground.dice) for _ in range(TOGETHER)]
        count += _all_answered(ground, pieces)
    return f"{count:,} requests"


def _all_answered(ground: Ground, pieces: list[bytes]) -> int:
    """Send requests in one piece; how many were answered before one that ends the connection.

    The real server leaves a request that came with another one until more comes: there each is
    sent when the one before it has been answered.
    """
    sent = b"".join(pieces)
    with connected(ground.server.http) as client, client.makefile("rb") as stream:
        client.settimeout(ANSWER_S)
        for number, request in enumerate(pieces):
            try:
                if ground.side == "triton":
                    client.sendall(request)
                elif number == 0:
                    client.sendall(sent)
                reply = read_reply(stream)
            except (ConnectionEnded, OSError) as error:
                text = f"request {number + 1} was not answered: {error!r}"
                raise Harm("http", sent, text) from error
            if reply.status not in STATUSES:
                raise Harm("http", request, f"answered {reply.status}")
            if (reply.header("Connection") or "").lower() == "close":
                return number + 1
    return len(pieces)


def mutated_bytes(ground: Ground) -> str:
    """HTTP requests with bytes changed anywhere, heads too: answered in HTTP, or sent away."""
    pool = requests()
    return _every_connection(ground, "http", lambda dice: mutated(dice.choice(pool), dice))


def mutated_calls(ground: Ground) -> str:
    """GRPC messages with bytes changed, several calls on a connection."""

    def sent(dice: random.Random) -> bytes:
        return b"".join(_calls(dice, lambda body: mutated(body, dice)))

    return _every_connection(ground, "grpc", sent, TOGETHER)


def mutated_frames(ground: Ground) -> str:
    """Frames of HTTP/2 with bytes changed anywhere: heads, header blocks, data."""

    def sent(dice: random.Random) -> bytes:
        changed: bytes = mutated(b"".join(_calls(dice, bytes)), dice)
        return changed

    return _every_connection(ground, "grpc", sent, TOGETHER)


def _calls(dice: random.Random, change: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Good calls as frames, whose messages are changed."""
    encoder, pool = Encoder(), _good_calls()
    for stream in range(1, 2 * TOGETHER, 2):
        one = dice.choice(pool)
        yield frame(HEADERS, END_HEADERS, stream, encoder.encode(head(SERVICE + one.method)))
        yield frame(DATA, END_STREAM, stream, message(change(one.requests[0])))


@cache
def _good_calls() -> list[GrpcCall]:
    """What is changed: calls that leave everything as it was."""
    calls: list[GrpcCall] = good_calls(*_CALLS_THAT_CHANGE_NOTHING)
    return calls


CHECKS = {"http": check_http, "grpc": check_grpc}


def _every_connection(
    ground: Ground, kind: str, make: Callable[[random.Random], bytes], requests_each: int = 1
) -> str:
    """Send what is made, connection after connection; how much was sent and answered."""
    address = {"http": ground.server.http, "grpc": ground.server.grpc}[kind]
    count = answered = 0
    for _ in ground.over():
        sent = make(ground.dice)
        count += requests_each
        try:
            answered += CHECKS[kind](address, sent)
        except (Defect, OSError) as error:
            raise Harm(kind, sent, str(error)) from error
    return f"{count:,} requests, {answered:,} answered"
