"""Messages over a socket pair: JSON behind its length. Tensors do not travel this way."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

#: A message: what kind it is, then what that kind has. JSON's values alone.
Message = Sequence[Any]

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16
# The standard library's: NaN and lone surrogates pass, as they do within one process.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


class Channel:
    """One end of the socket pair. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()
        self._backlog = bytearray()  # what the socket would not take yet
        self._received = bytearray()

    def send(self, *messages: Message) -> None:
        """Send messages, in this order. Never blocks, and does nothing once the peer is gone.

        What the socket does not take at once is sent by a thread that is started for it: whoever
        receives may have to send, too, and if both sides waited for room neither would make it.
        """
        frames = bytearray()
        for message in messages:
            text = _encode(message).encode()
            frames += _LENGTH.pack(len(text))
            frames += text
        with self._lock:
            if self._backlog:
                self._backlog += frames
                return
            del frames[: self._sent(frames)]
            if frames:
                self._backlog = frames
                threading.Thread(target=self._flush, name="flush", daemon=True).start()

    def _sent(self, data: bytearray) -> int:
        """How many bytes went now."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:  # the peer is gone, which the receiving thread finds out by itself
            return len(data)

    def _flush(self) -> None:
        room = select.poll()
        with contextlib.suppress(OSError, ValueError):
            room.register(self._socket, select.POLLOUT)
        while True:
            room.poll()
            with self._lock:
                del self._backlog[: self._sent(self._backlog)]
                if not self._backlog:
                    return

    def receive(self) -> list[Any] | None:
        """The next message, waiting for it; None when the peer is gone."""
        received = self._received
        needed = _LENGTH.size
        while True:
            if len(received) >= needed:
                (length,) = _LENGTH.unpack_from(received)
                needed = _LENGTH.size + length
                if len(received) >= needed:
                    text = received[_LENGTH.size : needed].decode()
                    del received[:needed]
                    message: list[Any] = _decode(text)
                    return message
            try:
                chunk = self._socket.recv(max(_CHUNK, needed - len(received)))
            except OSError:
                return None
            if not chunk:
                return None
            received += chunk

    def shut(self) -> None:
        """Let both sides find the peer gone."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back, when nobody receives any more."""
        self._socket.close()
