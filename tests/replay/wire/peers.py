"""Scripted servers, and a loop with requests for them."""

import contextlib
import socket
import struct
import threading

from hpack import Encoder
from support.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    frame,
    message,
    settings,
)

from triton_replay.addresses import Address
from triton_replay.loading.loop import Loop
from triton_replay.wire.grpc_connection import GrpcConnection
from triton_replay.wire.http_connection import HttpConnection
from triton_replay.wire.sockets import resolve

REQUEST = message(b"x" * 300)  # 305 bytes
SETTINGS_ALONE = settings()
OK = [("grpc-status", "0")]


class Peer:
    """One connection of a scripted HTTP/2 server."""

    def __init__(self, connection, opening):
        self.socket = connection
        self.encoder = Encoder()
        self.calls, self.data, self.acks, self.pongs = [], {}, 0, 0
        self._read(len(PREFACE))
        self.send(opening)

    def _read(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data

    def send(self, *frames):
        self.socket.sendall(b"".join(frames))

    def call(self, size=305):
        """Read until `size` bytes of the next call have arrived; return its stream."""
        while True:
            head = self._read(9)
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = self._read(int.from_bytes(head[:3], "big"))
            if kind == HEADERS:
                self.calls.append(stream)
            elif kind == SETTINGS:
                self.acks += flags & ACK
            elif kind == PING:
                self.pongs += flags & ACK
            elif kind == DATA:
                self.data[stream] = self.data.get(stream, b"") + payload
                if len(self.data[stream]) >= size:
                    return stream

    def answer(self, stream, trailers=OK):
        block = self.encoder.encode([(":status", "200"), ("content-type", "application/grpc")])
        self.send(
            frame(HEADERS, END_HEADERS, stream, block),
            frame(DATA, 0, stream, message(b"y")),
            frame(HEADERS, END_HEADERS | END_STREAM, stream, self.encoder.encode(trailers)),
        )


def grpc_loop(*scripts, opening=SETTINGS_ALONE, in_flight=1, request=REQUEST):
    """A loop with a gRPC server that runs a script for each connection, in order."""

    def connect(loop, server):
        where = (loop.poll, loop.by_number)
        return GrpcConnection(server, *where, "/service/method", (("X-A", "b"),), in_flight)

    served = [lambda connection, one=one: one(Peer(connection, opening)) for one in scripts]
    return _loop_on(served, connect, request)


def http_loop(*scripts, request=b"GET / HTTP/1.1\r\n\r\n"):
    """A loop with an HTTP server that sends one text per request, for each connection."""

    def serve(texts, connection):
        for text in texts:
            read = b""
            while not read.endswith(request):
                piece = connection.recv(1 << 16)
                if not piece:
                    return
                read += piece
            connection.sendall(text)

    def connect(loop, server):
        return HttpConnection(server, loop.poll, loop.by_number)

    served = [lambda connection, texts=texts: serve(texts, connection) for texts in scripts]
    return _loop_on(served, connect, request)


@contextlib.contextmanager
def _loop_on(scripts, connect, request):
    errors = []

    def serve(listener):
        try:
            for script in scripts:
                with listener.accept()[0] as connection, contextlib.suppress(ConnectionError):
                    script(connection)
        except Exception as error:
            errors.append(error)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = resolve(Address(*listener.getsockname()), "-u")
        listener.accept()[0].close()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        loop = Loop(
            lambda loop: connect(loop, server), lambda _: request, lambda _: None, timeout=20
        )
        try:
            yield loop
        finally:
            loop.close()
            thread.join()
    assert errors == []


def asked(loop, in_flight, requests):
    """Send requests; return the reason of each failure, or ""."""
    loop.keep(in_flight, requests)
    loop.run(2**63 - 1, requests)
    return [loop.record.failed.get(index, "") for index in range(requests)]
