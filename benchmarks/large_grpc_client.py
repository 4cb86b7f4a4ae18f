"""The client of closed loops for messages over gRPC that need flow control."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Sequence

from benchmarks.closed_loop import FRAME_HEAD, GrpcClient
from tests.support.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)


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
