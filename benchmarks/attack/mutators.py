"""Good requests with random changes, over live connections, for a short or a long time.

A test case is all bytes of one connection: replayed on a new server, they have the same effect.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
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

from benchmarks.attack import Defect
from benchmarks.attack.ground import SERVICE, Ground, connect
from benchmarks.attack.watching import Facts, facts

STATUSES = frozenset((200, 400, 404, 405, 415, 431, 500, 501, 503))
PIPELINED = 16
"""Requests per connection. They are sent in one piece; the responses must come in order."""
TIMEOUT_S = 20.0
"""A server that sends nothing for this long counts as hanging."""
_OPENING = PREFACE + frame(SETTINGS)
_READ_ONLY_CALLS = (
    *("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"),
    *("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex"),
)


@dataclass(frozen=True)
class Harm(Exception):
    """A connection whose responses are wrong or missing."""

    kind: str
    """The frontend: `http` or `grpc`."""
    sent: bytes
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def exchange(address: str, sent: bytes) -> bytes:
    """Send bytes, half-close, and return everything received until the server closes.

    Raises:
        Defect: The server neither sent data nor closed the connection in time.
    """
    with connect(address) as client:
        client.settimeout(TIMEOUT_S)
        received = bytearray()
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(1 << 20):
                received += piece
        except TimeoutError as error:
            raise Defect(f"connection open without data for {TIMEOUT_S:.0f} s") from error
        except OSError:  # the server closed before it had read everything
            pass
        return bytes(received)


def check_http(address: str, sent: bytes) -> int:
    """Send bytes over HTTP and count the responses. Raise Defect if they are not HTTP."""
    received = exchange(address, sent)
    if received and not received.startswith(b"HTTP/"):
        raise Defect(f"response is not HTTP: {received[:80]!r}")
    return received.count(b"HTTP/")


def check_grpc(address: str, sent: bytes) -> int:
    """Send bytes after a valid HTTP/2 preface and count the streams with a response.

    Raises:
        Defect: The server sent a frame of an unknown type.
    """
    received = exchange(address, _OPENING + sent)
    streams: set[int] = set()
    while received:
        length = int.from_bytes(received[:3], "big")
        if len(received) < 9 + length:
            break  # the server closed the connection within a frame
        if received[3] > 9:
            raise Defect(f"response has a frame of unknown type: {received[:9]!r}")
        streams.add(int.from_bytes(received[5:9], "big"))
        received = received[9 + length :]
    return len(streams - {0})


# -- the attacks


def mutated_requests(ground: Ground) -> str:
    """HTTP requests with changed bodies and targets. Each must get its response, in order."""
    pool = requests()
    count = 0
    for _ in ground.over():
        pieces = [reframed(ground.dice.choice(pool), ground.dice) for _ in range(PIPELINED)]
        count += _count_responses(ground, pieces)
    return f"{count:,} requests"


def _count_responses(ground: Ground, pieces: list[bytes]) -> int:
    """Send requests in one piece and count the responses until one that closes the connection.

    The real server does not read a pipelined request until more data arrives, so it receives
    each request only after the previous response.

    Raises:
        Harm: A request got no response, or a response with an unexpected status.
    """
    sent = b"".join(pieces)
    with connect(ground.server.http) as client, client.makefile("rb") as stream:
        client.settimeout(TIMEOUT_S)
        for number, request in enumerate(pieces):
            try:
                if ground.side == "triton":
                    client.sendall(request)
                elif number == 0:
                    client.sendall(sent)
                reply = read_reply(stream)
            except (ConnectionEnded, OSError) as error:
                text = f"request {number + 1} got no response: {error!r}"
                raise Harm("http", sent, text) from error
            if reply.status not in STATUSES:
                raise Harm("http", request, f"response has status {reply.status}")
            if (reply.header("Connection") or "").lower() == "close":
                return number + 1
    return len(pieces)


def mutated_bytes(ground: Ground) -> str:
    """HTTP requests with changes anywhere, headers included. A response, if any, must be HTTP."""
    pool = requests()
    return _every_connection(ground, "http", lambda dice: mutated(dice.choice(pool), dice))


def mutated_calls(ground: Ground) -> str:
    """Calls over gRPC with changed messages, several per connection."""

    def sent(dice: random.Random) -> bytes:
        return b"".join(_calls(dice, lambda body: mutated(body, dice)))

    return _every_connection(ground, "grpc", sent, PIPELINED)


def mutated_frames(ground: Ground) -> str:
    """HTTP/2 frames with changes anywhere: frame headers, header blocks, data."""

    def sent(dice: random.Random) -> bytes:
        changed: bytes = mutated(b"".join(_calls(dice, bytes)), dice)
        return changed

    return _every_connection(ground, "grpc", sent, PIPELINED)


def _calls(dice: random.Random, change: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Yield the frames of valid calls with changed messages."""
    encoder, pool = Encoder(), _good_calls()
    for stream in range(1, 2 * PIPELINED, 2):
        one = dice.choice(pool)
        yield frame(HEADERS, END_HEADERS, stream, encoder.encode(head(SERVICE + one.method)))
        yield frame(DATA, END_STREAM, stream, message(change(one.requests[0])))


@cache
def _good_calls() -> list[GrpcCall]:
    """Return valid calls that do not change the server's state."""
    calls: list[GrpcCall] = good_calls(*_READ_ONLY_CALLS)
    return calls


CHECKS = {"http": check_http, "grpc": check_grpc}


def _every_connection(
    ground: Ground, kind: str, make: Callable[[random.Random], bytes], requests_each: int = 1
) -> str:
    """Send the bytes from `make`, one connection after another, and report the counts."""
    address = {"http": ground.server.http, "grpc": ground.server.grpc}[kind]
    count = answered = 0
    for _ in ground.over():
        sent = make(ground.dice)
        count += requests_each
        try:
            answered += CHECKS[kind](address, sent)
        except (Defect, OSError) as error:
            raise Harm(kind, sent, str(error)) from error
    return f"{count:,} requests, {answered:,} responses"


# -- endurance

_SAMPLE_S = 2.0
_LEAST_SAMPLES = 5
_CYCLE = (
    mutated_requests,
    mutated_requests,
    mutated_requests,
    mutated_calls,
    mutated_bytes,
    mutated_frames,
)


def slopes(requests: list[int], held: list[Facts]) -> tuple[float, float, float]:
    """Return the growth in MiB, descriptors and threads per million requests.

    The first third is ignored because memory that the server allocates once is not a leak.
    """
    begin = len(held) // 3
    millions = np.array(requests[begin:]) / 1e6
    if len(millions) < _LEAST_SAMPLES or millions[0] == millions[-1]:
        return (float("nan"),) * 3
    columns = [
        [one.mib for one in held[begin:]],
        [float(one.descriptors) for one in held[begin:]],
        [float(one.threads) for one in held[begin:]],
    ]
    first, second, third = (float(np.polyfit(millions, column, 1)[0]) for column in columns)
    return first, second, third


def endurance(ground: Ground) -> str:
    """Mutated requests over both frontends, in rounds of two seconds."""
    count, requests, held = 0, [0], [facts(ground.server)]
    dice = random.Random(ground.dice.random())
    started = time.monotonic()
    for number, left in enumerate(ground.over()):
        attack = _CYCLE[number % len(_CYCLE)]
        did = attack(replace(ground, dice=dice, seconds=min(_SAMPLE_S, left)))
        count += int(did.split()[0].replace(",", ""))
        requests.append(count)
        held.append(facts(ground.server))
    mib, descriptors, threads = slopes(requests, held)
    return (
        f"{count:,} requests in {time.monotonic() - started:,.0f} s; per million "
        f"{mib:+.1f} MiB, {descriptors:+.1f} descriptors, {threads:+.1f} threads"
    )


# -- request smuggling: requests whose framing two HTTP parsers may read differently
#
# Each form hides a request for the model `smuggled` in bytes that RFC 9112 defines as a body, or in
# an invalid request. A correct server rejects the form or reads it as one body; a vulnerable server
# sends a response for `smuggled`.


HIDDEN = b"GET /v2/models/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
CANARY = b"GET /v2/models/canary HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_LINE = b"POST /v2/models/identity_0/infer HTTP/1.1\r\nHost: x\r\n"
_SIZE = b"%d" % len(HIDDEN)
_CHUNK = b"%x" % len(HIDDEN)
_CHUNKED = _CHUNK + b"\r\n" + HIDDEN + b"\r\n0\r\n\r\n"

LENGTHS = (
    *(b"Content-Length: " + _SIZE, b"content-length:\t" + _SIZE + b" "),
    *(b"Content-Length: " + _SIZE + b"\r\nContent-Length: " + _SIZE,),
    *(b"Content-Length: 0\r\nContent-Length: " + _SIZE,),
    *(b"Content-Length: " + _SIZE + b"\r\nContent-Length: 0",),
    *(b"Content-Length: " + sign + _SIZE for sign in (b"+", b"-", b"0x", b"00", b"0,", b"\x0b")),
    *(b"Content-Length: " + _SIZE + tail for tail in (b",0", b";0", b".0", b"e0", b" 0", b"\x00")),
    *(b"Content-Length : " + _SIZE, b"Content-Length\t: " + _SIZE, b" Content-Length: " + _SIZE),
    *(b"Content-Length:\r\n " + _SIZE, b"X: y\r\n z\r\nContent-Length: " + _SIZE),
    *(b"X: y\nContent-Length: " + _SIZE, b"X: y\rContent-Length: " + _SIZE),
    *(b"X\r\nContent-Length: " + _SIZE, b": y\r\nContent-Length: " + _SIZE),
    *(b"X\x00: y\r\nContent-Length: " + _SIZE, b"X: \x00\r\nContent-Length: " + _SIZE),
    *(b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: " + _SIZE,),
    *(b"Upgrade: websocket\r\nConnection: upgrade\r\nContent-Length: " + _SIZE,),
    *(b"Expect: 100-continue\r\nContent-Length: " + _SIZE,),
)
CODINGS = (
    *(b"Transfer-Encoding: " + value for value in (b"chunked", b"CHUNKED", b"\tchunked ")),
    *(b"Transfer-Encoding: " + value for value in (b"chunked, chunked", b"identity, chunked")),
    *(b"Transfer-Encoding: " + value for value in (b"gzip, chunked", b"chunked, identity")),
    *(b"Transfer-Encoding: " + value for value in (b"xchunked", b"chunkedx", b"\x0bchunked")),
    *(b"Transfer-Encoding: " + value for value in (b'"chunked"', b"chunked;q=1", b"chun ked")),
    *(b"Transfer-Encoding : chunked", b" Transfer-Encoding: chunked"),
    *(b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: chunked\r\n X: y"),
    *(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",),
    *(b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",),
    *(b"Content-Length: 0\r\nTransfer-Encoding: chunked",),
    *(b"Transfer-Encoding: chunked\r\nContent-Length: 0",),
    *(b"Transfer-Encoding: chunked\r\nContent-Length: 4",),
    *(b"Upgrade: h2c\r\nConnection: Upgrade\r\nTransfer-Encoding: chunked",),
)
CHUNKS = (
    *(sign + _CHUNK + b"\r\n" for sign in (b"+", b"-", b"0x", b"000", b" ", b"\t")),
    *(_CHUNK + tail for tail in (b" \r\n", b";a=b\r\n", b';a="\n"\r\n', b"\n", b"\r", b"x\r\n")),
    *(b"1000000000000000" + _CHUNK + b"\r\n", b"ffffffffffffffff\r\n"),
)


def forms() -> Iterator[bytes]:
    """Yield every form as a whole request."""
    for lines in LENGTHS:
        yield _LINE + lines + b"\r\n\r\n" + HIDDEN
    for lines in CODINGS:
        yield _LINE + lines + b"\r\n\r\n" + _CHUNKED
    for size in CHUNKS:
        head = _LINE + b"Transfer-Encoding: chunked\r\n\r\n"
        yield head + size + HIDDEN + b"\r\n0\r\n\r\n"


def smuggling(ground: Ground) -> str:
    """Ambiguous request framing, each form with a request hidden in its body."""
    refused = read = 0
    for form in forms():
        received = exchange(ground.server.http, form + CANARY)
        if b"smuggled" in received:
            raise Harm("http", form + CANARY, "the server read a body as a request")
        if b"canary" in received:
            read += 1
        else:
            refused += 1
    return f"{refused} forms rejected, {read} read as one body"
