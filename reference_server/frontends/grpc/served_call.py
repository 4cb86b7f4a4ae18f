"""One call of gRPC on the server, between its method and the bytes of its client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from reference_server.codecs.proto_fields import Data
from reference_server.codecs.proto_wire import UNREADABLE, Parts
from reference_server.core.backlog import Backlog
from reference_server.core.errors import ServerError
from reference_server.core.intake import Intake
from reference_server.frontends.grpc.calls import (
    IGNORING,
    STATUS,
    CallFailed,
    CallHandler,
    Method,
    Run,
    Status,
)
from reference_server.frontends.grpc.headers import RequestHeaders
from reference_server.frontends.grpc.messages import INFLATE, MessageReader, Packed, framed

_TOO_LATE = "Deadline Exceeded"
_TOO_SLOW = "the request did not come within the time that its client has for it"
#: Compressed bytes that are unpacked at once: what they become, at most a thousand times as much,
#: takes about a millisecond. More is left to another thread.
_UNPACKED_AT_ONCE = 1 << 10
#: Bytes of an answer that are packed at once: about a millisecond's work.
_PACKED_AT_ONCE = 1 << 16
#: Bytes of messages that wait behind one that is being unpacked.
_MOST_WAITING = 1 << 24


class Timer(Protocol):
    """What a clock gives for what it was asked to do later."""

    def cancel(self) -> None:
        """Do not do it."""


class Clock(Protocol):
    """The time that passes, of which asyncio's loops are the real one."""

    def time(self) -> float:
        """The seconds since some moment."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call `callback` in `delay` seconds."""


class Responder(Protocol):
    """Where answers go; calls are named by their streams."""

    def reply(self, stream_id: int, encoding: str, body: Parts) -> None:
        """Answer with one message, which is framed, and end the call well."""

    def open(self, stream_id: int, encoding: str) -> None:
        """Begin the response of a call that has several messages."""

    def send(self, stream_id: int, encoding: str, message: Parts) -> int:
        """Send one of them; how many bytes of them wait for the client now."""

    def hold(self, stream_id: int, *, held: bool) -> None:
        """Have its client send no more than it may already, or go on."""

    def finish(self, stream_id: int) -> None:
        """End such a call well."""

    def fail(self, stream_id: int, status: Status, message: str, *, opened: bool) -> None:
        """End a call badly; `opened` if its response has begun."""


class ServedCall:
    """A call from its headers to its end: `begin`, then what the client does."""

    __slots__ = (
        "_answer",
        "_backlog",
        "_encoding",
        "_handler",
        "_has_ended",
        "_has_message",
        "_headers",
        "_intake",
        "_is_busy",
        "_is_half_closed",
        "_is_held",
        "_is_open",
        "_reader",
        "_responder",
        "_run",
        "_stream_id",
        "_streams",
        "_timer",
        "_waiting",
        "_waiting_bytes",
        "asked_bytes",
        "is_counted",
        "is_parked",
    )

    def __init__(
        self,
        responder: Responder,
        stream_id: int,
        headers: RequestHeaders,
        encoding: str,
        run: Run,
        intake: Intake | None = None,
    ) -> None:
        self._responder = responder
        self._run = run
        self._stream_id = stream_id
        self._headers = headers
        self._encoding = encoding
        self._intake = intake or Intake()
        self._reader = MessageReader(INFLATE[headers.encoding], self._intake)
        self._streams = False
        self._answer: Parts | None = None
        self._has_message = False
        self._has_ended = False
        self._handler: CallHandler = IGNORING
        self._is_open = False  # the response has begun
        self._is_half_closed = False
        self._is_busy = False  # a message is being unpacked
        self._waiting: deque[Data | Packed] = deque()  # the messages behind that, or while parked
        self._waiting_bytes = 0
        self._is_held = False  # the method wants no more
        self.asked_bytes = 0  # of the message of a call that has one
        self.is_counted = False  # among those in work, by who serves the call
        self.is_parked = False
        self._timer: Timer | None = None
        self._backlog: Backlog | None = None

    # -- the method's side

    def metadata(self, name: str) -> str | None:
        """The first value that the client sent under this name."""
        return self._headers.metadata.get(name)

    def fields(self) -> Sequence[tuple[bytes, bytes]]:
        """All metadata, in their order."""
        return self._headers.fields

    def send(self, *message: Data) -> None:
        """Send a message in parts; the one of a call that has only one waits for its end."""
        if self._has_ended:
            return
        if not self._streams:
            self._answer = message
            return
        self._open()
        unsent = self._responder.send(self._stream_id, self._encoding, message)
        if self._backlog is not None:
            self._backlog.keep(unsent)

    def watch(self, backlog: Backlog) -> None:
        """Tell `backlog` what waits for the client of all that is sent; close it at the end."""
        self._backlog = backlog

    def hold(self, *, held: bool) -> None:
        """Have the client send no more than it may already, or go on."""
        self._is_held = held
        self._hold()

    def _hold(self) -> None:
        if not self._has_ended:
            held = self._is_held or self._waiting_bytes > _MOST_WAITING
            self._responder.hold(self._stream_id, held=held)

    def end(self, error: ServerError | None = None) -> None:
        """End the call."""
        if self._has_ended:
            return
        self._close()
        if error is not None:
            status = STATUS[error.code]
            self._responder.fail(self._stream_id, status, error.message, opened=self._is_open)
        elif self._answer is not None:
            self._reply(self._answer)
        else:
            self._open()
            self._responder.finish(self._stream_id)

    def _reply(self, answer: Parts) -> None:
        encoding = self._encoding
        if encoding == "identity" or sum(map(len, answer)) <= _PACKED_AT_ONCE:
            self._replied(framed(answer, encoding))
        else:
            plain = framed(answer, "identity")  # if there is no thread for it
            self._run(
                lambda: framed(answer, encoding), self._replied, lambda _: self._replied(plain)
            )

    def _replied(self, body: Parts) -> None:
        self._responder.reply(self._stream_id, self._encoding, body)

    # -- the client's side

    def begin(self, method: Method, clock: Clock) -> None:
        """Start the method, which may end the call at once."""
        timeout_s = self._headers.timeout_s
        self._streams = method.streams
        handler = method.start(self)
        if not self._has_ended:
            self._handler = handler
        if timeout_s == 0:  # over before it began: no timer needed
            self._expire()
        elif timeout_s is not None and not self._has_ended:
            self._timer = clock.call_later(timeout_s, self._expire)

    @property
    def lacks(self) -> int:
        """How many bytes are still to come of the message under way."""
        return self._reader.lacks

    def place(self, size: int) -> memoryview:
        """Where the next bytes of that message belong, of which it lacks so many."""
        return self._reader.place(size)

    @property
    def received(self) -> int | None:
        """How many bytes have come of what the client owes: a message; None if it owes nothing."""
        if self._has_ended:
            return None
        gathered = self._reader.gathered
        owes = gathered is not None or not (self._streams or self._has_message)
        return (gathered or 0) if owes else None

    def give_up(self) -> None:
        """End the call of a client that owes a message for too long."""
        self._fail(Status.DEADLINE_EXCEEDED, _TOO_SLOW)

    def receive(self, data: memoryview) -> None:
        """Take a piece of the body."""
        if self._has_ended or (self._has_message and not self._streams):
            return
        try:
            for message in self._reader.feed(data):
                self._has_message = True
                self._take(message)
                if self._has_ended or not self._streams:
                    return  # what follows does not matter, and is not worth unpacking
        except CallFailed as failure:
            self._fail(failure.status, failure.message)

    def park(self) -> None:
        """Keep what the client asks for until `unpark`: it has not read what it was answered."""
        self.is_parked = True

    def unpark(self) -> None:
        """Go on."""
        self.is_parked = False
        self._go_on()

    def _take(self, message: Data | Packed) -> None:
        """Give the method its next message, after those that are being unpacked."""
        size = len(message.data if isinstance(message, Packed) else message)
        if not self._streams:
            self.asked_bytes = size
        if self._is_busy or self.is_parked:
            self._waiting.append(message)
            self._waiting_bytes += size
            if self._streams and self._waiting_bytes > _MOST_WAITING:
                self._hold()
        elif not isinstance(message, Packed):
            self._handler.receive(message)
        elif size <= _UNPACKED_AT_ONCE:
            self._handler.receive(message.plain())
        else:
            self._is_busy = True
            self._run(message.plain, self._unpacked, self._not_unpacked)

    def _unpacked(self, message: Data) -> None:
        if self._has_ended:
            return
        self._is_busy = False
        try:
            kept = self._intake.keep(memoryview(message))
        except ServerError as error:
            self._fail(Status.RESOURCE_EXHAUSTED, error.message)
            return
        self._handler.receive(kept)
        self._go_on()

    def _go_on(self) -> None:
        """Take the messages that have waited."""
        was_much = self._waiting_bytes > _MOST_WAITING
        try:
            while self._waiting and not (self._is_busy or self.is_parked or self._has_ended):
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message.data if isinstance(message, Packed) else message)
                self._take(message)
        except CallFailed as failure:
            self._fail(failure.status, failure.message)
        if was_much and self._streams:
            self._hold()
        if self._is_half_closed:
            self.half_close()

    def _not_unpacked(self, error: Exception) -> None:
        failure = (
            error if isinstance(error, CallFailed) else CallFailed(Status.INTERNAL, str(error))
        )
        self._fail(failure.status, failure.message)

    def half_close(self) -> None:
        """The client will send nothing more."""
        if self._has_ended:
            return
        if self._is_busy or self.is_parked:
            self._is_half_closed = True
        elif self._streams or self._has_message:
            self._handler.half_close()
        else:
            self._fail(Status.INTERNAL, UNREADABLE)

    def moved(self, unsent: int) -> None:
        """The client took something: so many bytes wait for it still."""
        if self._backlog is not None:
            self._backlog.keep(unsent)

    def cancel(self) -> None:
        """The client is gone, or has given up the call."""
        if not self._has_ended:
            handler = self._handler
            self._close()
            handler.cancel()

    def stop(self) -> None:
        """The server is to end: take nothing more from the client of a stream."""
        if self._streams and not self._has_ended:
            self._handler.half_close()

    # -- inside

    def _expire(self) -> None:
        self._fail(Status.DEADLINE_EXCEEDED, _TOO_LATE)

    def _fail(self, status: Status, message: str) -> None:
        """End the call over what its method knows nothing of."""
        if not self._has_ended:
            self.cancel()
            self._responder.fail(self._stream_id, status, message, opened=self._is_open)

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._responder.open(self._stream_id, self._encoding)

    def _close(self) -> None:
        self._has_ended = True
        self._waiting.clear()
        self._handler = IGNORING  # which knows this call, and would keep it and its messages
        if self._timer is not None:
            self._timer.cancel()
        if self._backlog is not None:
            self._backlog.close()
