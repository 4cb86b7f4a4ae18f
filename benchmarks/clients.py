"""Clients of the closed loops: connections that send prepared bytes and count answers."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
from collections.abc import Iterator, Sequence

from hpack import Encoder

from tests.support.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    head,
    settings,
)


class HttpClient:
    """A connection with one request in flight, out of some that take turns."""

    events = select.EPOLLIN

    def __init__(self, address: str, requests: Sequence[bytes]) -> None:
        self.socket = connected(address)
        self._requests = itertools.cycle(requests)
        self._received = 0
        self._size = 0  # of the answer, once that is known

    def ask(self) -> None:
        """Send the next request."""
        self._received = self._size = 0
        self.socket.sendall(next(self._requests))

    def answers(self) -> int:
        """How many answers what has come makes complete."""
        data = received(self.socket)
        if not self._size:  # a head comes whole: it is short
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server answers {data[:500]!r}")
            head, _, _ = data.partition(b"\r\n\r\n")
            length = head.lower().partition(b"\ncontent-length: ")[2].partition(b"\r")[0]
            self._size = len(head) + 4 + int(length)
        self._received += len(data)
        return int(self._received == self._size)


class GrpcClient:
    """A connection with some calls of ModelInfer in flight."""

    events = select.EPOLLIN
    method = "ModelInfer"

    def __init__(self, address: str, requests: Sequence[bytes]) -> None:
        self.socket = connected(address)
        encoder = Encoder()
        fields = head(f"/inference.GRPCInferenceService/{self.method}")
        self._block = encoder.encode(fields)
        self._again = encoder.encode(fields)  # which refers to the first
        self._requests = itertools.cycle(requests)
        self._stream = 1
        self._rest = b""
        self._unacknowledged = 0
        opening = PREFACE + settings(_4=2**30, _5=2**22)  # frames as gRPC's own library has them
        self.socket.send(opening + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)))

    def ask(self) -> None:
        """Send the next request, which is small: it waits for no flow control."""
        self.send(next(self._requests))

    def send(self, request: bytes) -> None:
        """Send a message in a call of its own."""
        parts = [
            frame(HEADERS, END_HEADERS, self._stream, self._block),
            frame(DATA, END_STREAM, self._stream, request),
            *self._acknowledged(),
        ]
        self.socket.sendall(b"".join(parts))
        self._block = self._again
        self._stream += 2

    def _acknowledged(self) -> Iterator[bytes]:
        if self._unacknowledged > 1 << 20:
            yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged))
            self._unacknowledged = 0

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """What has come: the kind, the flags, the stream and the payload of each frame."""
        data = self._rest + received(self.socket)
        position = 0
        while len(data) - position >= FRAME_HEAD.size:
            high, low, kind, flags, stream = FRAME_HEAD.unpack_from(data, position)
            size = high << 8 | low
            if len(data) - position < FRAME_HEAD.size + size:
                break
            position += FRAME_HEAD.size + size
            self._unacknowledged += size if kind == DATA else 0
            yield kind, flags, stream, data[position - size : position]
        self._rest = data[position:]

    def answers(self) -> int:
        """How many calls what has come makes complete."""
        return sum(kind == HEADERS and flags & END_STREAM for kind, flags, _, _ in self.frames())


class StreamClient(GrpcClient):
    """A connection with one call of ModelStreamInfer, and some requests in flight on that."""

    method = "ModelStreamInfer"
    #: Messages that are the answer to one request.
    responses = 1

    def __init__(self, address: str, requests: Sequence[bytes]) -> None:
        super().__init__(address, requests)
        self._opening = [frame(HEADERS, END_HEADERS, 1, self._block)]
        self._data = b""
        self._messages = 0

    def send(self, request: bytes) -> None:
        """Send a message on the stream."""
        parts = [*self._opening, frame(DATA, 0, 1, request), *self._acknowledged()]
        self.socket.sendall(b"".join(parts))
        self._opening = []

    def answers(self) -> int:
        """How many answers what has come makes complete."""
        self._data += b"".join(payload for kind, *_, payload in self.frames() if kind == DATA)
        position = 0
        while len(self._data) - position >= MESSAGE_HEAD.size:
            _, size = MESSAGE_HEAD.unpack_from(self._data, position)
            if len(self._data) - position < MESSAGE_HEAD.size + size:
                break
            position += MESSAGE_HEAD.size + size
            self._messages += 1
        self._data = self._data[position:]
        answers, self._messages = divmod(self._messages, self.responses)
        return answers


class DecoupledClient(StreamClient):
    """The same with a model that answers a hundred times."""

    responses = 100


class LargeGrpcClient(GrpcClient):
    """A connection with one call of ModelInfer in flight, whose messages may be of any size.

    It sends what flow control and the socket take, and the rest when they take more. Of what comes
    it reads the heads of frames, and drops the tensors in them.
    """

    events = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET

    def __init__(self, address: str, requests: Sequence[bytes]) -> None:
        super().__init__(address, requests)
        self.socket.setblocking(False)
        self._stream = -1  # of the call in flight
        self._message = memoryview(b"")  # what is not in frames yet
        self._output: list[bytes | memoryview] = []
        self._first_window = self._window = self._windows = 65_535  # of a stream, this one, all
        self._longest = 16_384  # bytes of a frame
        self._room = memoryview(bytearray(1 << 22))  # more than its start is not written to
        self._begun = 0  # bytes of a frame that is not whole
        self._to_drop = 0  # bytes of DATA that are still to come

    def send(self, request: bytes) -> None:
        """Send a message in a call of its own, as far as possible now."""
        self._stream += 2
        self._output.append(frame(HEADERS, END_HEADERS, self._stream, self._block))
        self._block = self._again
        self._message, self._window = memoryview(request), self._first_window
        self._send()

    def _send(self) -> None:
        while (size := min(len(self._message), self._longest, self._window, self._windows)) > 0:
            data, self._message = self._message[:size], self._message[size:]
            flags = 0 if self._message else END_STREAM
            self._output.append(FRAME_HEAD.pack(size >> 8, size & 0xFF, DATA, flags, self._stream))
            self._output.append(data)
            self._window -= size
            self._windows -= size
        with contextlib.suppress(BlockingIOError):
            sent = self.socket.sendmsg(self._output) if self._output else 0
            while sent:
                first = memoryview(self._output.pop(0))
                if sent < len(first):
                    self._output.insert(0, first[sent:])
                sent -= min(sent, len(first))

    def answers(self) -> int:
        """How many calls what has come makes complete; sends what may be sent now."""
        answers = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                room, flags = self._room[self._begun : 1 << 12], 0
                if self._to_drop:
                    room, flags = self._room[: self._to_drop], socket.MSG_TRUNC
                size = self.socket.recv_into(room, 0, flags)
                if not size:
                    raise SystemExit("the server has closed a connection")
                if self._to_drop:
                    self._to_drop -= size
                else:
                    answers += self._read(self._begun + size)
                if size < len(room):
                    break
        self._output += self._acknowledged()
        self._send()
        return answers

    def _read(self, end: int) -> int:
        """Read the frames up to there in the room; how many calls they make complete."""
        position = answers = 0
        while end - position >= FRAME_HEAD.size:
            high, low, kind, flags, stream = FRAME_HEAD.unpack_from(self._room, position)
            start = position + FRAME_HEAD.size
            past = start + (high << 8 | low)
            if kind == DATA:
                self._unacknowledged += past - start
                self._to_drop = max(0, past - end)
            elif past > end:
                break
            else:
                self._heed(kind, flags, stream, bytes(self._room[start:past]))
                answers += bool(kind == HEADERS and flags & END_STREAM)
            position = min(past, end)
        self._begun = end - position
        self._room[: self._begun] = self._room[position:end]
        return answers

    def _heed(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            told = dict(struct.iter_unpack(">HI", payload))
            self._longest = told.get(5, self._longest)
            wider = told.get(4, self._first_window) - self._first_window
            self._first_window += wider
            self._window += wider
            self._output.append(frame(SETTINGS, ACK))
        elif kind == PING and not flags & ACK:  # by which gRPC measures how wide a window to grant
            self._output.append(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            (wider,) = struct.unpack(">I", payload)
            self._windows += 0 if stream else wider
            self._window += wider if stream == self._stream else 0
        elif kind in (RST_STREAM, GOAWAY):
            raise SystemExit(f"the server gives up: {payload!r}")


MESSAGE_HEAD = struct.Struct(">BI")
Client = HttpClient | GrpcClient
FRAME_HEAD = struct.Struct(">HBBBI")


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def received(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 17)
    if not data:
        raise SystemExit("the server has closed a connection")
    return data
