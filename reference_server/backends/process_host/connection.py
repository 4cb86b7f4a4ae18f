"""What connects the two processes: messages over a socket pair, tensors in shared memory."""

from __future__ import annotations

import contextlib
import json
import logging
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reference_server.backends.process_host.memory import IncomingMemory, OutgoingMemory
from reference_server.core import forks
from reference_server.core.errors import internal

log = logging.getLogger(__name__)

#: A message: what kind it is, then what that kind has. JSON's values alone.
Message = Sequence[Any]
#: What the receiving thread does with the messages of one kind.
Handler = Callable[..., None]

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16
#: Bytes of a message: far more than names, shapes and texts need. Tensors are not in it.
_MOST = 1 << 28
#: How much is received at once.
_ROOM = 1 << 20
# The standard library's: NaN and lone surrogates pass, as they do within one process.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


class MessageChannel:
    """One end of the socket pair: JSON behind its length. Any thread may send; one receives.

    A message of which some has come has to come whole: no part of it may take longer than
    `stalled_s`. None: any time.
    """

    def __init__(self, end: socket.socket, stalled_s: float | None = None) -> None:
        self._socket = end
        self._stalled_s = stalled_s
        if stalled_s is not None:
            # The kernel's own limit: one of Python's would hold for sending, too.
            limit = struct.pack("@ll", int(stalled_s), int(stalled_s % 1 * 1e6))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._lock = threading.Lock()
        self._backlog = bytearray()  # what the socket would not take yet
        self._received = bytearray()

    def send(self, *messages: Message) -> None:
        """Send messages, in this order. Never blocks, and does nothing once the peer is gone.

        Raises ServerError, and sends none, if one has more bytes than the peer would receive.

        What the socket does not take at once is sent by a thread that is started for it: whoever
        receives may have to send, too, and if both sides waited for room neither would make it.
        """
        frames = bytearray()
        for message in messages:
            text = _encode(message).encode()
            if len(text) > _MOST:
                raise internal(
                    f"a message '{message[0]}' of {len(text)} bytes for the other process of the "
                    f"model, expected {_MOST} at most; tensors do not count"
                )
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
        try:
            room.register(self._socket, select.POLLOUT)
        except (OSError, ValueError):  # closed meanwhile; `poll` of nothing would never return
            return
        while True:
            room.poll()
            with self._lock:
                del self._backlog[: self._sent(self._backlog)]
                if not self._backlog:
                    return

    def receive(self) -> list[Any] | None:
        """The next message, waiting for it; None when the peer is gone.

        Raises ValueError for what is no message.
        """
        received = self._received
        needed = _LENGTH.size
        while True:
            if len(received) >= needed:
                (length,) = _LENGTH.unpack_from(received)
                if length > _MOST:
                    raise ValueError(f"a message of {length} bytes, expected {_MOST} at most")
                needed = _LENGTH.size + length
                if len(received) >= needed:
                    text = received[_LENGTH.size : needed].decode()
                    del received[:needed]
                    try:
                        message = _decode(text)
                    except RecursionError:
                        raise ValueError("a message that is nested too deeply") from None
                    if not (isinstance(message, list) and message):
                        raise ValueError(f"{text[:80]!r}, expected a list with a kind")
                    return message
            try:
                chunk = self._socket.recv(min(max(_CHUNK, needed - len(received)), _ROOM))
            except BlockingIOError:
                if not received:
                    continue
                raise ValueError(
                    f"{len(received)} bytes of a message and nothing more for "
                    f"{self._stalled_s:g} s, expected {needed}"
                ) from None
            except OSError:
                return None
            if not chunk:
                return None
            received += chunk

    def keep_from_forks(self) -> None:
        """Leave this end to this process: its copies have none."""
        forks.close_in_forks(self._socket.fileno())
        forks.hold_for_forks(self._lock.acquire, self._lock.release)

    def shut(self) -> None:
        """Let both sides find the peer gone."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back, when nobody receives any more."""
        self._socket.close()


class Connection:
    """One process's end: sends and receives messages, and manages the shared memory both ways.

    Each message takes along which blocks this side has finished with. Any thread may send; `run`
    belongs to one.
    """

    def __init__(
        self, channel: MessageChannel, outgoing: OutgoingMemory, incoming: IncomingMemory
    ) -> None:
        self._channel = channel
        self._outgoing = outgoing
        self._incoming = incoming
        self._later: deque[Message] = deque()
        self._receiver: threading.Thread | None = None
        self._collecting = threading.Lock()
        self._collected = threading.Event()
        self._is_over = False

    def send(self, *message: Any) -> None:  # noqa: ANN401 - JSON's values
        """Send one message. Never blocks."""
        messages: list[Message] = []
        while self._later:
            try:
                messages.append(self._later.popleft())
            except IndexError:  # another thread was faster
                break
        if ended := self._incoming.ended():
            messages.append(("free", ended))
        self._channel.send(*messages, message)

    def send_later(self, *message: Any) -> None:  # noqa: ANN401 - JSON's values
        """Send one message before the next. Takes no lock: the garbage collector may call it."""
        self._later.append(message)

    def put(self, data: memoryview) -> tuple[int, int]:
        """Copy `data` to where the other side can see it: offset and size.

        Raises ServerError if there is no room for it. Waits for the other side's answer at most.
        """
        if not data:
            return 0, 0
        offset = self._outgoing.put(data)
        if offset is None and self._collects():
            offset = self._outgoing.put(data)
        if offset is None:
            raise internal(
                f"no room for a tensor of {len(data)} bytes in the memory that is shared with the "
                "model's process"
            )
        return offset, len(data)

    def view(self, offset: int, size: int) -> memoryview:
        """What the other side has put there; it may be written to."""
        # Empty tensors have no block: `put` took none.
        return self._incoming.view(offset, size) if size else memoryview(bytearray())

    def take_back(self, offsets: Sequence[int]) -> None:
        """Free blocks of which the other side was never told."""
        self._outgoing.give_back(offsets)

    def _collects(self) -> bool:
        """Have the other side tell what it has finished with; False if this thread cannot wait."""
        if threading.current_thread() is self._receiver:  # it would wait for itself
            return False
        with self._collecting:
            self._collected.clear()
            # Looked at after `clear`: `run` sets both when it ends, so one of them is seen.
            if self._is_over:
                return False
            self.send("collect")
            self._collected.wait()
        return True

    def run(self, handlers: Mapping[str, Handler]) -> None:
        """Receive until the other side is gone, calling the handler of each message's kind.

        A message that cannot be read or handled ends the connection as well: whoever waits for what
        it said is told that the other side is gone, and waits no more.
        """
        self._receiver = threading.current_thread()
        # Answered here and not by `handlers`: a `put` of the other side waits for "collected".
        own: dict[str, Handler] = {
            "free": self._outgoing.give_back,
            "collect": lambda: self.send("collected"),
            "collected": self._collected.set,
        }
        table = {**handlers, **own}
        try:
            while (message := self._channel.receive()) is not None:
                kind, *parts = message
                table[kind](*parts)
                del message, parts  # the views of tensors in them, while this waits for the next
        except Exception as error:
            log.error(
                "the other process of a model is left: its message means nothing here: %s: %s",
                type(error).__name__,
                error,
            )
            log.debug("where it was not understood", exc_info=True)
            self.shut()
        self._is_over = True
        self._collected.set()

    def shut(self) -> None:
        """Let both sides find the other gone."""
        self._channel.shut()

    def close(self) -> None:
        """Give the socket and the memory back, when `run` has returned. Views stay as they are."""
        self._channel.close()
        self._outgoing.close()
        self._incoming.close()
