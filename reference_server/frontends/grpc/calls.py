"""gRPC calls as methods see them: protocols, types of methods, status codes.

Used on the event loop's thread.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from reference_server.codecs import proto_wire
from reference_server.codecs.proto_fields import Data
from reference_server.codecs.proto_wire import UNREADABLE
from reference_server.core import gil
from reference_server.core.backlog import Backlog
from reference_server.core.errors import Code, ServerError, internal
from reference_server.frontends.event_loop import Background

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Message)
#: A response: a message, or its serialized bytes.
Answer: TypeAlias = "Message | bytes"

ResultT = TypeVar("ResultT")


class Run(Protocol):
    """Runs blocking work on another thread, then calls `done` with the result or `failed`."""

    def __call__(
        self,
        work: Callable[[], ResultT],
        done: Callable[[ResultT], None],
        failed: Callable[[Exception], None],
        /,
    ) -> None:
        """Start the work."""


class Status(enum.IntEnum):
    """The gRPC status codes that this server uses, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


#: The gRPC status of each internal code. No other module maps them.
STATUS: dict[Code, Status] = {
    Code.UNKNOWN: Status.UNKNOWN,
    Code.INTERNAL: Status.INTERNAL,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.INVALID_ARG: Status.INVALID_ARGUMENT,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.CANCELLED: Status.CANCELLED,
}


class CallFailed(Exception):
    """A call failed before it reached its method, or for a reason of the transport."""

    def __init__(self, status: Status, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Call(Protocol):
    """One call, as its method sees it. Everything after `end` is ignored."""

    def metadata(self, name: str) -> str | None:
        """Return the first metadata value of `name`, which is in lower case, or None."""

    def fields(self) -> Sequence[tuple[bytes, bytes]]:
        """Return all metadata in their order."""

    def send(self, *message: Data) -> None:
        """Send one message. Does not block."""

    def watch(self, backlog: Backlog) -> None:
        """Count unread bytes of the client in `backlog`, and close `backlog` at the end."""

    def hold(self, *, held: bool) -> None:
        """Stop or resume granting flow-control window to the client."""

    def end(self, error: ServerError | None = None) -> None:
        """End the call after the sent messages, with status OK or with `error`."""


class CallHandler(Protocol):
    """One call, as its transport sees it."""

    def receive(self, message: Data) -> None:
        """The client sent a message."""

    def half_close(self) -> None:
        """The client sends nothing more."""

    def cancel(self) -> None:
        """The client is disconnected, or has cancelled the call."""


class _IgnoringHandler:
    """The handler of an ended call."""

    def receive(self, message: Data) -> None:
        pass

    def half_close(self) -> None:
        pass

    def cancel(self) -> None:
        pass


IGNORING = _IgnoringHandler()


@dataclass(frozen=True, slots=True)
class Method:
    """A method: `start` starts a call; `streams` if client or server may send several messages."""

    start: Callable[[Call], CallHandler]
    streams: bool = False


#: The answer to a message, or blocking work that returns the answer.
AnswerOrWork: TypeAlias = "Answer | Callable[[], Answer]"


class _OneMessageCall(Generic[RequestT]):
    """A unary call. `prepare` returns the answer, or blocking work that `run` runs.

    `reading` parses long messages.
    """

    __slots__ = ("_call", "_prepare", "_reading", "_request_type", "_run")

    def __init__(
        self,
        call: Call,
        request_type: type[RequestT],
        prepare: Callable[[RequestT], AnswerOrWork],
        reading: Run,
        run: Run,
    ) -> None:
        self._call = call
        self._request_type = request_type
        self._prepare = prepare
        self._reading = reading
        self._run = run

    def receive(self, message: Data) -> None:
        if gil.is_long(message_bytes=len(message)):
            self._reading(lambda: self._read(message), self._received, self._failed)
            return
        try:
            request = self._read(message)
        except ServerError as error:
            self._failed(error)
        else:
            self._received(request)

    def half_close(self) -> None:
        """Ignore it: a unary call has one message."""

    def cancel(self) -> None:
        """Ignore it: the requested work is done anyway."""

    def _read(self, data: Data) -> RequestT:
        request: RequestT = self._request_type()
        try:
            proto_wire.merge(request, data)
        except DecodeError:
            raise internal(UNREADABLE) from None
        return request

    def _received(self, request: RequestT) -> None:
        try:
            answer = self._prepare(request)
        except Exception as error:  # a defect must not leave the client waiting
            self._failed(error)
            return
        if callable(answer):
            self._run(lambda: _serialized(answer()), self._done, self._failed)
        else:
            self._done(_serialized(answer))

    def _done(self, answer: bytes) -> None:
        self._call.send(answer)
        self._call.end()

    def _failed(self, error: Exception) -> None:
        self._call.end(error if isinstance(error, ServerError) else described_defect(error))


def immediate(
    request_type: type[RequestT], answer: Callable[[RequestT], Answer], reading: Background
) -> Method:
    """Return a method that responds with the result of `answer`, or with its ServerError."""
    return maybe_blocking(request_type, answer, reading, reading)


def blocking(
    request_type: type[RequestT],
    answer: Callable[[RequestT], Answer],
    reading: Background,
    background: Background,
) -> Method:
    """Return a method like `immediate` whose `answer` blocks and runs on its own thread."""
    return maybe_blocking(
        request_type, lambda request: lambda: answer(request), reading, background
    )


def maybe_blocking(
    request_type: type[RequestT],
    answer: Callable[[RequestT], AnswerOrWork],
    reading: Background,
    background: Background,
) -> Method:
    """Return a method like `immediate` whose `answer` may return blocking work instead.

    The work runs on its own thread and returns the response.
    """
    return Method(
        lambda call: _OneMessageCall(call, request_type, answer, reading.run, background.run)
    )


def _serialized(answer: Answer) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def described_defect(defect: Exception) -> ServerError:
    """Log a defect, and return the error for the client."""
    log.error("gRPC", exc_info=defect)
    return internal(f"{type(defect).__name__}: {defect}")
