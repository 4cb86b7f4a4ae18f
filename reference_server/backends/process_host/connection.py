"""The connection of the two processes: messages over two socket pairs, and shared memory."""

from __future__ import annotations

import contextlib
import json
import logging
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from reference_server.backends.process_host.memory import IncomingMemory, OutgoingMemory
from reference_server.backends.process_host.messages import Parcel, ReceivedParcel
from reference_server.core import forks
from reference_server.core.errors import internal

log = logging.getLogger(__name__)

#: A message: its type, then its arguments. All are JSON values.
Message = Sequence[Any]
#: The handler of a message type; its last argument is the parcel of the message, if any.
Handler = Callable[..., None]
_Read = TypeVar("_Read")

#: The sizes of a message's text and of its parcel in bytes; -1 means no parcel.
_LENGTHS = struct.Struct("<Ii")
_NO_PARCEL = -1
_CHUNK = 1 << 16
#: The limit for a message in bytes, parcel included. Large tensors are not part of a message.
_LIMIT = 1 << 28
#: The limit for one `recv` in bytes.
_RECEIVE_LIMIT = 1 << 20
# The standard library's JSON passes NaN and lone surrogates unchanged, as within one process.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


class MessageChannel:
    """One end of a socket pair with length-prefixed JSON messages.

    Any thread may send; one thread receives. `stalled_s` limits the time between two parts of one
    message; None means no limit.
    """

    def __init__(self, end: socket.socket, stalled_s: float | None = None) -> None:
        self._socket = end
        self._stalled_s = stalled_s
        if stalled_s is not None:
            # The kernel's limit: a timeout of the Python socket would apply to sending too.
            limit = struct.pack("@ll", int(stalled_s), int(stalled_s % 1 * 1e6))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._lock = threading.Lock()
        self._backlog = bytearray()  # bytes that the socket did not accept yet
        self.sent = 0  # the number of messages, including the backlog
        self._received = bytearray()

    def send(self, *messages: Message, parcel: Parcel | None = None) -> None:
        """Send messages in order; `parcel` belongs to the last message. Never blocks.

        No-op if the peer is gone. Bytes that the socket does not accept at once are sent by a
        separate thread: a receiver may have to send too, and both sides could wait for each other.

        Raises:
            ServerError: A message exceeds the limit; nothing is sent.
        """
        *before, last = messages
        frames = bytearray()
        for message in before:
            frames += _frame(message, None)
        frames += _frame(last, parcel)
        with self._lock:
            self.sent += len(messages)
            if self._backlog:
                self._backlog += frames
                return
            del frames[: self._sent(frames)]
            if frames:
                self._backlog = frames
                threading.Thread(target=self._flush, name="flush", daemon=True).start()

    def _sent(self, data: bytearray) -> int:
        """Send without blocking; return the number of bytes sent."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:  # the peer is gone; the receiving thread notices it
            return len(data)

    def _flush(self) -> None:
        room = select.poll()
        try:
            room.register(self._socket, select.POLLOUT)
        except (OSError, ValueError):  # closed; `poll` without sockets would never return
            return
        while True:
            room.poll()
            with self._lock:
                del self._backlog[: self._sent(self._backlog)]
                if not self._backlog:
                    return

    def receive(self, deadline: float | None = None) -> tuple[list[Any], bytearray | None] | None:
        """Wait for the next message; return it with the bytes of its parcel, or None at the end.

        Raises:
            ValueError: The bytes are not a message.
            TimeoutError: `deadline`, a time of `time.monotonic`, has passed.
        """
        received = self._received
        needed = _LENGTHS.size
        while True:
            if len(received) >= needed:
                text_length, data_length = _LENGTHS.unpack_from(received)
                length = text_length + max(0, data_length)
                if data_length < _NO_PARCEL:
                    raise ValueError(f"found a parcel of {data_length} bytes")
                if length > _LIMIT:
                    raise ValueError(
                        f"found a message of {length} bytes; expected {_LIMIT} at most"
                    )
                needed = _LENGTHS.size + length
                if len(received) >= needed:
                    end = _LENGTHS.size + text_length
                    text = received[_LENGTHS.size : end].decode()
                    # A copy that lives as long as its views.
                    data = None if data_length == _NO_PARCEL else received[end:needed]
                    del received[:needed]
                    return _message(text), data
            if deadline is not None:
                self._wait(deadline)
            try:
                chunk = self._socket.recv(min(max(_CHUNK, needed - len(received)), _RECEIVE_LIMIT))
            except BlockingIOError:
                if not received:
                    continue
                raise ValueError(
                    f"found {len(received)} bytes of a message, then nothing for "
                    f"{self._stalled_s:g} s; expected {needed} bytes"
                ) from None
            except OSError:
                return None
            if not chunk:
                return None
            received += chunk

    def _wait(self, deadline: float) -> None:
        """Wait until `recv` would not block. Raises TimeoutError."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            raise TimeoutError

    def close_in_forks(self) -> None:
        """Close this end in forked children."""
        forks.close_in_forks(self._socket.fileno())
        forks.hold_for_forks(self._lock.acquire, self._lock.release)

    def shut(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection for both sides; SHUT_RD ends only reading, after the unread bytes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket. No thread may be receiving."""
        self._socket.close()


def _frame(message: Message, parcel: Parcel | None) -> bytes:
    """Return the bytes of a message. Raises ServerError if it is too long."""
    text = _encode(message).encode()
    data = b"" if parcel is None else parcel.data
    if len(text) + len(data) > _LIMIT:
        kind = next(part for part in message if isinstance(part, str))
        raise internal(
            f"message '{kind}' to the other process of the model: found {len(text) + len(data)} "
            f"bytes; expected {_LIMIT} at most, large tensors not counted"
        )
    lengths = _LENGTHS.pack(len(text), _NO_PARCEL if parcel is None else len(data))
    return b"".join((lengths, text, data))


def _message(text: str) -> list[Any]:
    """Return the message of a JSON text. Raises ValueError."""
    try:
        message = _decode(text)
    except RecursionError:
        raise ValueError("found a message that is nested too deeply") from None
    if not (isinstance(message, list) and message):
        raise ValueError(f"found {text[:80]!r}; expected a list that starts with a message type")
    return message


class Connection:
    """One end of the connection: sends and receives messages, and manages the shared memory.

    There are two channels. Jobs and their results use the first channel, without a thread between
    the requesting and the running thread. Events use the second channel, and a separate thread
    receives them. `receive_job` returns a job only after the events that were sent before the job
    have been handled. An event may be handled before an earlier job.

    Each message carries the offsets of the blocks that this side no longer uses. Any thread may
    send. One thread calls `run`; one thread at a time calls `receive_job`.
    """

    def __init__(
        self,
        events: MessageChannel,
        jobs: MessageChannel,
        outgoing: OutgoingMemory,
        incoming: IncomingMemory,
    ) -> None:
        self._events = events
        self._jobs = jobs
        self._outgoing = outgoing
        self._incoming = incoming
        self._later: deque[Message] = deque()
        self._receiver: threading.Thread | None = None
        self._collecting = threading.Lock()
        self._collected = threading.Event()
        self._handled = 0  # the number of handled events
        self._is_awaited = False
        self._changed = threading.Condition()
        self._is_over = False

    def send(self, *message: Any, parcel: Parcel | None = None) -> None:  # noqa: ANN401 - JSON's values
        """Send an event. Never blocks. Raises ServerError if it is too long."""
        messages: list[Message] = []
        while self._later:
            try:
                messages.append(self._later.popleft())
            except IndexError:  # another thread was faster
                break
        if unused := self._incoming.take_unused():
            messages.append(("free", unused))
        self._events.send(*messages, message, parcel=parcel)

    def send_job(self, *job: Any, parcel: Parcel | None = None) -> None:  # noqa: ANN401 - JSON's values
        """Send a job or its result. Never blocks. Raises ServerError if it is too long."""
        if self._later:
            self.send("nothing")
        message = (self._events.sent, self._incoming.take_unused(), *job)
        self._jobs.send(message, parcel=parcel)

    def send_later(self, *message: Any) -> None:  # noqa: ANN401 - JSON's values
        """Send an event together with the next message.

        Takes no lock, since the garbage collector may call it.
        """
        self._later.append(message)

    def put(self, data: memoryview) -> int:
        """Copy `data`, which is not empty, into the shared memory; return the offset.

        If there is no room, waits until the other side has reported unused blocks.

        Raises:
            ServerError: There is no room.
        """
        offset = self._outgoing.put(data)
        if offset is None and self._collects():
            offset = self._outgoing.put(data)
        if offset is None:
            raise internal(
                f"tensor of {len(data)} bytes: found no room in the shared memory of the model's "
                "process; expected fewer or smaller tensors in flight"
            )
        return offset

    def view(self, offset: int, size: int) -> memoryview:
        return self._incoming.view(offset, size)

    def free_unsent(self, offsets: Sequence[int]) -> None:
        self._outgoing.free(offsets)

    def _collects(self) -> bool:
        """Wait for the other side's unused blocks; return False if this thread must not wait."""
        if threading.current_thread() is self._receiver:  # handles the answer
            return False
        with self._collecting:
            self._collected.clear()
            # At its end `run` sets `_is_over` and `_collected`. As `_is_over` is read after
            # `clear`, this thread sees one of the two.
            if self._is_over:
                return False
            self.send("collect")
            self._collected.wait()
        return True

    def run(self, handlers: Mapping[str, Handler]) -> None:
        """Receive events and call their handlers until the other side is gone.

        A message that cannot be read or handled ends the connection, so that no thread waits for
        its effect.
        """
        self._receiver = threading.current_thread()
        own: dict[str, Handler] = {
            "free": self._outgoing.free,
            "collect": lambda: self.send("collected"),
            "collected": self._collected.set,
            "nothing": lambda: None,
        }
        table = {**handlers, **own}
        try:
            while (received := self._events.receive()) is not None:
                (kind, *parts), data = received
                table[kind](*parts, *self._parcels(data))
                del received, parts, data  # a waiting thread must not hold tensors
                self._handled += 1
                if self._is_awaited:
                    with self._changed:
                        self._changed.notify_all()
        except Exception as error:
            self._fail(error)
        self._jobs.shut(socket.SHUT_RD)  # ends a wait for a job
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._collected.set()

    def receive_job(self, read: Callable[..., _Read], limit_s: float | None = None) -> _Read | None:
        """Wait for the next job and return the result of `read` for the job; None at the end.

        A job that cannot be read ends the connection.

        Raises:
            TimeoutError: No job has arrived within `limit_s`.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        try:
            received = self._jobs.receive(deadline)
            if received is None:
                return None
            (events, ended, *job), data = received
            if self._handled < events and not self._await_events(events, deadline):
                return None
            if ended:
                self._outgoing.free(ended)
            return read(*job, *self._parcels(data))
        except TimeoutError:
            raise
        except Exception as error:
            self._fail(error)
            return None

    def _await_events(self, count: int, deadline: float | None) -> bool:
        """Wait until `count` events are handled; return False if the connection ends before."""
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._changed:
            self._is_awaited = True  # before the check; `run` reads it after counting
            try:
                if not self._changed.wait_for(
                    lambda: self._is_over or self._handled >= count, left_s
                ):
                    raise TimeoutError
            finally:
                self._is_awaited = False
        return self._handled >= count

    def _parcels(self, data: bytearray | None) -> tuple[ReceivedParcel, ...]:
        return () if data is None else (ReceivedParcel(self, data),)

    def _fail(self, error: Exception) -> None:
        log.error(
            "model process connection closed: found a message that cannot be handled: %s: %s",
            type(error).__name__,
            error,
        )
        log.debug("traceback of the message", exc_info=True)
        self.shut()

    def shut(self) -> None:
        """End the connection for both sides."""
        self._events.shut()
        self._jobs.shut()

    def close(self) -> None:
        """Close the sockets and the memory. No thread may be receiving; views stay valid."""
        self._events.close()
        self._jobs.close()
        self._outgoing.close()
        self._incoming.close()
