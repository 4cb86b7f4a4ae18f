"""What connects the two processes: messages over two socket pairs, tensors in shared memory."""

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
from reference_server.backends.process_host.parcels import Parcel, ReceivedParcel
from reference_server.core import forks
from reference_server.core.errors import internal

log = logging.getLogger(__name__)

#: A message: what kind it is, then what that kind has. JSON's values alone.
Message = Sequence[Any]
#: What the receiving thread does with the messages of one kind; the last argument is the parcel
#: that came with it, if one did.
Handler = Callable[..., None]
_Read = TypeVar("_Read")

#: The bytes of a message's text, and those of its parcel: -1 if it has none.
_LENGTHS = struct.Struct("<Ii")
_NO_PARCEL = -1
_CHUNK = 1 << 16
#: Bytes of a message: far more than names, shapes and texts need. Large tensors are not in it.
_MOST = 1 << 28
#: How much is received at once.
_ROOM = 1 << 20
# The standard library's: NaN and lone surrogates pass, as they do within one process.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


class MessageChannel:
    """One end of a socket pair: JSON behind its length. Any thread may send; one receives.

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
        self.sent = 0  # messages, be they on their way to the socket yet
        self._received = bytearray()

    def send(self, *messages: Message, parcel: Parcel | None = None) -> None:
        """Send messages, in this order, the last with its parcel. Never blocks.

        Does nothing once the peer is gone. Raises ServerError, and sends none, if one has more
        bytes than the peer would receive.

        What the socket does not take at once is sent by a thread that is started for it: whoever
        receives may have to send, too, and if both sides waited for room neither would make it.
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

    def receive(self, deadline: float | None = None) -> tuple[list[Any], bytearray | None] | None:
        """The next message and what is in its parcel; None when the peer is gone. Waits for it.

        Raises ValueError for what is no message, TimeoutError at `deadline` of `time.monotonic`.
        """
        received = self._received
        needed = _LENGTHS.size
        while True:
            if len(received) >= needed:
                text_length, data_length = _LENGTHS.unpack_from(received)
                length = text_length + max(0, data_length)
                if data_length < _NO_PARCEL:
                    raise ValueError(f"a parcel of {data_length} bytes")
                if length > _MOST:
                    raise ValueError(f"a message of {length} bytes, expected {_MOST} at most")
                needed = _LENGTHS.size + length
                if len(received) >= needed:
                    end = _LENGTHS.size + text_length
                    text = received[_LENGTHS.size : end].decode()
                    # Bytes of its own, which views of them keep alive.
                    data = None if data_length == _NO_PARCEL else received[end:needed]
                    del received[:needed]
                    return _message(text), data
            if deadline is not None:
                self._wait(deadline)
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

    def _wait(self, deadline: float) -> None:
        """Wait for something to receive, or the end. Raises TimeoutError."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            raise TimeoutError

    def keep_from_forks(self) -> None:
        """Leave this end to this process: its copies have none."""
        forks.close_in_forks(self._socket.fileno())
        forks.hold_for_forks(self._lock.acquire, self._lock.release)

    def shut(self, how: int = socket.SHUT_RDWR) -> None:
        """Let both sides find the peer gone; with SHUT_RD this side, when it has read the rest."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(how)

    def close(self) -> None:
        """Give the socket back, when nobody receives any more."""
        self._socket.close()


def _frame(message: Message, parcel: Parcel | None) -> bytes:
    """A message as it is sent. Raises ServerError if it is too long."""
    text = _encode(message).encode()
    data = b"" if parcel is None else parcel.data
    if len(text) + len(data) > _MOST:
        kind = next(part for part in message if isinstance(part, str))
        raise internal(
            f"a message '{kind}' of {len(text) + len(data)} bytes for the other process of the "
            f"model, expected {_MOST} at most; large tensors do not count"
        )
    lengths = _LENGTHS.pack(len(text), _NO_PARCEL if parcel is None else len(data))
    return b"".join((lengths, text, data))


def _message(text: str) -> list[Any]:
    """What was sent. Raises ValueError."""
    try:
        message = _decode(text)
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not (isinstance(message, list) and message):
        raise ValueError(f"{text[:80]!r}, expected a list with a kind")
    return message


class Connection:
    """One process's end: sends and receives messages, and manages the shared memory both ways.

    Messages go over two channels. A job, and what came of it, go from the thread that has it done
    to the one that does it and back: one change of threads each way. All else, the events, is
    received by a thread of its own. A job is received when all events are handled that were sent
    before it; an event may be received before a job that was sent earlier.

    Each message takes along which blocks this side has finished with. Any thread may send; `run`
    belongs to one, and `receive_job` to one at a time.
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
        self._handled = 0  # events
        self._is_awaited = False
        self._changed = threading.Condition()
        self._is_over = False

    def send(self, *message: Any, parcel: Parcel | None = None) -> None:  # noqa: ANN401 - JSON's values
        """Send one event. Never blocks. Raises ServerError if it is too long."""
        messages: list[Message] = []
        while self._later:
            try:
                messages.append(self._later.popleft())
            except IndexError:  # another thread was faster
                break
        if ended := self._incoming.ended():
            messages.append(("free", ended))
        self._events.send(*messages, message, parcel=parcel)

    def send_job(self, *job: Any, parcel: Parcel | None = None) -> None:  # noqa: ANN401 - JSON's values
        """Send a job, or what came of it. Never blocks. Raises ServerError if it is too long."""
        if self._later:
            self.send("nothing")
        message = (self._events.sent, self._incoming.ended(), *job)
        self._jobs.send(message, parcel=parcel)

    def send_later(self, *message: Any) -> None:  # noqa: ANN401 - JSON's values
        """Send one event before the next message.

        Takes no lock: the garbage collector may call it.
        """
        self._later.append(message)

    def put(self, data: memoryview) -> int:
        """Copy `data`, which is not empty, to where the other side can see it: its offset.

        Raises ServerError if there is no room for it. Waits for the other side's answer at most.
        """
        offset = self._outgoing.put(data)
        if offset is None and self._collects():
            offset = self._outgoing.put(data)
        if offset is None:
            raise internal(
                f"no room for a tensor of {len(data)} bytes in the memory that is shared with the "
                "model's process"
            )
        return offset

    def view(self, offset: int, size: int) -> memoryview:
        """What the other side has put there; it may be written to."""
        return self._incoming.view(offset, size)

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
        """Receive events until the other side is gone, calling the handler of each one's kind.

        A message that cannot be read or handled ends the connection as well: whoever waits for what
        it said is told that the other side is gone, and waits no more.
        """
        self._receiver = threading.current_thread()
        # Answered here and not by `handlers`: a `put` of the other side waits for "collected".
        own: dict[str, Handler] = {
            "free": self._outgoing.give_back,
            "collect": lambda: self.send("collected"),
            "collected": self._collected.set,
            "nothing": lambda: None,
        }
        table = {**handlers, **own}
        try:
            while (received := self._events.receive()) is not None:
                (kind, *parts), data = received
                table[kind](*parts, *self._parcels(data))
                del received, parts, data  # the tensors in them, while this waits for the next
                self._handled += 1
                if self._is_awaited:
                    with self._changed:
                        self._changed.notify_all()
        except Exception as error:
            self._leave(error)
        self._jobs.shut(socket.SHUT_RD)  # who waits for a job waits no more
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._collected.set()

    def receive_job(self, read: Callable[..., _Read], limit_s: float | None = None) -> _Read | None:
        """What `read` makes of the next job, as of an event; None when the other side is gone.

        A job that cannot be read ends the connection. Raises TimeoutError after `limit_s`.
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
                self._outgoing.give_back(ended)
            return read(*job, *self._parcels(data))
        except TimeoutError:
            raise
        except Exception as error:
            self._leave(error)
            return None

    def _await_events(self, count: int, deadline: float | None) -> bool:
        """Wait until so many are handled; False if there will not be as many."""
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._changed:
            self._is_awaited = True  # before it looks, and `run` looks at it after it has counted
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

    def _leave(self, error: Exception) -> None:
        log.error(
            "the other process of a model is left: its message means nothing here: %s: %s",
            type(error).__name__,
            error,
        )
        log.debug("where it was not understood", exc_info=True)
        self.shut()

    def shut(self) -> None:
        """Let both sides find the other gone."""
        self._events.shut()
        self._jobs.shut()

    def close(self) -> None:
        """Give the sockets and the memory back, when nobody receives. Views stay as they are."""
        self._events.close()
        self._jobs.close()
        self._outgoing.close()
        self._incoming.close()
