"""One gRPC call on the server, between its method and the bytes of its client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from reference_server.codecs.proto_fields import Data
from reference_server.codecs.proto_wire import UNREADABLE, Parts
from reference_server.core import gil
from reference_server.core.backlog import Backlog, Intake
from reference_server.core.errors import ServerError
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

_DEADLINE_EXCEEDED = "Deadline Exceeded"
_BODY_TIMEOUT = "body timeout: message incomplete"
#: Limit for bytes of messages that wait behind a message that is being decompressed.
_MAX_WAITING_BYTES = 1 << 24


class Timer(Protocol):
    """A handle of a scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Clock(Protocol):
    """Time and timers, such as an asyncio event loop's."""

    def time(self) -> float:
        """Return the time in seconds since an arbitrary moment."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call `callback` after `delay` seconds."""


class Responder(Protocol):
    """The connection that sends the replies of calls; calls are identified by their streams."""

    def reply(self, stream_id: int, encoding: str, body: Parts) -> None:
        """Answer a call with one framed message, and end it with status OK."""

    def open(self, stream_id: int, encoding: str) -> None:
        """Start the response of a call with several messages."""

    def send(self, stream_id: int, encoding: str, message: Parts) -> int:
        """Send a message. Return the number of bytes that wait for the client."""

    def hold(self, stream_id: int, *, held: bool) -> None:
        """Stop or resume granting flow-control window to the call's client."""

    def finish(self, stream_id: int) -> None:
        """End a call with several messages with status OK."""

    def fail(self, stream_id: int, status: Status, message: str, *, opened: bool) -> None:
        """End a call with an error; `opened` if its response has started."""


class ServedCall:
    """A call from its headers to its end. `begin` must be called first."""

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
        "is_counted",
        "is_parked",
        "request_bytes",
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
        self._is_open = False  # the response has started
        self._is_half_closed = False
        self._is_busy = False  # a message is being decompressed
        self._waiting: deque[Data | Packed] = deque()  # received while busy or parked
        self._waiting_bytes = 0
        self._is_held = False  # the method has called `hold`
        self.request_bytes = 0  # the size of a unary call's message
        self.is_counted = False  # included in the session's in-flight bytes
        self.is_parked = False
        self._timer: Timer | None = None
        self._backlog: Backlog | None = None

    # -- called by the method

    def metadata(self, name: str) -> str | None:
        """Return the first metadata value of this name."""
        return self._headers.metadata.get(name)

    def fields(self) -> Sequence[tuple[bytes, bytes]]:
        """Return all metadata in their order."""
        return self._headers.fields

    def send(self, *message: Data) -> None:
        """Send a message in parts. A unary call's message is sent when the call ends."""
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
        """Report to `backlog` how many bytes wait for the client; close it when the call ends."""
        self._backlog = backlog

    def hold(self, *, held: bool) -> None:
        """Stop or resume granting flow-control window to the client."""
        self._is_held = held
        self._hold()

    def _hold(self) -> None:
        if not self._has_ended:
            held = self._is_held or self._waiting_bytes > _MAX_WAITING_BYTES
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
        if encoding == "identity" or not gil.is_long(plain_bytes=sum(map(len, answer))):
            self._replied(framed(answer, encoding))
        else:
            plain = framed(answer, "identity")  # used if no thread can be started
            self._run(
                lambda: framed(answer, encoding), self._replied, lambda _: self._replied(plain)
            )

    def _replied(self, body: Parts) -> None:
        self._responder.reply(self._stream_id, self._encoding, body)

    # -- called by the session

    def begin(self, method: Method, clock: Clock) -> None:
        """Start the method, which may end the call at once."""
        timeout_s = self._headers.timeout_s
        self._streams = method.streams
        handler = method.start(self)
        if not self._has_ended:
            self._handler = handler
        if timeout_s == 0:  # already expired
            self._expire()
        elif timeout_s is not None and not self._has_ended:
            self._timer = clock.call_later(timeout_s, self._expire)

    @property
    def missing(self) -> int:
        """The number of missing bytes of the incomplete message."""
        return self._reader.missing

    def buffer(self, size: int) -> memoryview:
        """Return the buffer for the next `size` missing bytes of the incomplete message."""
        return self._reader.buffer(size)

    @property
    def received(self) -> int | None:
        """The number of received bytes of the message that the client still has to complete.

        None if no message is expected.
        """
        if self._has_ended:
            return None
        gathered = self._reader.gathered
        is_expected = gathered is not None or not (self._streams or self._has_message)
        return (gathered or 0) if is_expected else None

    def time_out(self) -> None:
        """End the call: its message was not received in time."""
        self._fail(Status.DEADLINE_EXCEEDED, _BODY_TIMEOUT)

    def receive(self, data: memoryview) -> None:
        """Process a piece of the body."""
        if self._has_ended or (self._has_message and not self._streams):
            return
        try:
            for message in self._reader.feed(data):
                self._has_message = True
                self._take(message)
                if self._has_ended or not self._streams:
                    return  # further messages are ignored
        except CallFailed as failure:
            self._fail(failure.status, failure.message)

    def park(self) -> None:
        """Keep messages until `unpark`: the client has not read its replies."""
        self.is_parked = True

    def unpark(self) -> None:
        """Process the kept messages."""
        self.is_parked = False
        self._go_on()

    def _take(self, message: Data | Packed) -> None:
        """Pass a message to the method, after earlier messages."""
        size = len(message.data if isinstance(message, Packed) else message)
        if not self._streams:
            self.request_bytes = size
        if self._is_busy or self.is_parked:
            self._waiting.append(message)
            self._waiting_bytes += size
            if self._streams and self._waiting_bytes > _MAX_WAITING_BYTES:
                self._hold()
        elif not isinstance(message, Packed):
            self._handler.receive(message)
        elif not gil.is_long(packed_bytes=size):
            self._handler.receive(message.plain())
        else:
            self._is_busy = True
            self._run(message.plain, self._decompressed, self._decompress_failed)

    def _decompressed(self, message: Data) -> None:
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
        """Process the waiting messages."""
        was_full = self._waiting_bytes > _MAX_WAITING_BYTES
        try:
            while self._waiting and not (self._is_busy or self.is_parked or self._has_ended):
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message.data if isinstance(message, Packed) else message)
                self._take(message)
        except CallFailed as failure:
            self._fail(failure.status, failure.message)
        if was_full and self._streams:
            self._hold()
        if self._is_half_closed:
            self.half_close()

    def _decompress_failed(self, error: Exception) -> None:
        failure = (
            error if isinstance(error, CallFailed) else CallFailed(Status.INTERNAL, str(error))
        )
        self._fail(failure.status, failure.message)

    def half_close(self) -> None:
        """Handle the end of the client's messages."""
        if self._has_ended:
            return
        if self._is_busy or self.is_parked:
            self._is_half_closed = True
        elif self._streams or self._has_message:
            self._handler.half_close()
        else:
            self._fail(Status.INTERNAL, UNREADABLE)

    def sent(self, unsent: int) -> None:
        """Update the backlog after bytes were sent; `unsent` bytes still wait for the client."""
        if self._backlog is not None:
            self._backlog.keep(unsent)

    def cancel(self) -> None:
        """Handle a disconnection or cancellation by the client."""
        if not self._has_ended:
            handler = self._handler
            self._close()
            handler.cancel()

    def stop(self) -> None:
        """Accept no more messages on a stream, because the server shuts down."""
        if self._streams and not self._has_ended:
            self._handler.half_close()

    # -- private

    def _expire(self) -> None:
        self._fail(Status.DEADLINE_EXCEEDED, _DEADLINE_EXCEEDED)

    def _fail(self, status: Status, message: str) -> None:
        """End the call with an error that the method did not report."""
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
        self._handler = IGNORING  # the method's handler refers to this call and its messages
        if self._timer is not None:
            self._timer.cancel()
        if self._backlog is not None:
            self._backlog.close()
