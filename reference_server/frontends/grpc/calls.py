"""The calls of gRPC as methods see them: ports, kinds of methods, status codes.

All on the loop's thread.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from reference_server.codecs import proto_pieces
from reference_server.codecs.proto_fields import Data
from reference_server.codecs.proto_wire import UNREADABLE
from reference_server.core.backlog import Backlog
from reference_server.core.errors import Code, ServerError, internal
from reference_server.frontends.event_loop import Background

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Message)
#: A response, or one that is serialized.
Answer: TypeAlias = "Message | bytes"

ResultT = TypeVar("ResultT")


class Run(Protocol):
    """Runs work, and then calls what is done with its result or with its error."""

    def __call__(
        self,
        work: Callable[[], ResultT],
        done: Callable[[ResultT], None],
        failed: Callable[[Exception], None],
        /,
    ) -> None:
        """Begin to."""


class Status(enum.IntEnum):
    """gRPC's status codes that this server answers with, by their numbers on the wire."""

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


#: The status of each internal code: the only place where the two meet.
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
    """A call ends before or beside its method, for a reason of gRPC's own."""

    def __init__(self, status: Status, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Call(Protocol):
    """One call, as its method sees it; nothing that is said after `end` is heard."""

    def metadata(self, name: str) -> str | None:
        """What the client sent under this name, in lower case, beside its messages."""

    def fields(self) -> Sequence[tuple[bytes, bytes]]:
        """All that the client sent beside its messages, in order."""

    def send(self, *message: Data) -> None:
        """Send one message. Does not wait for it."""

    def watch(self, backlog: Backlog) -> None:
        """Tell `backlog` what waits for the client of all that is sent; close it at the end."""

    def hold(self, *, held: bool) -> None:
        """Have the client send no more messages than it may already, or go on."""

    def end(self, error: ServerError | None = None) -> None:
        """End the call, after what was sent: well, or with `error`."""


class CallHandler(Protocol):
    """One call, as its transport sees it."""

    def receive(self, message: Data) -> None:
        """The client sent a message."""

    def half_close(self) -> None:
        """The client will send nothing more."""

    def cancel(self) -> None:
        """The client is gone, or waits no longer."""


class _IgnoringHandler:
    """The handler of a call that has ended: what its client still says does not matter."""

    def receive(self, message: Data) -> None:
        pass

    def half_close(self) -> None:
        pass

    def cancel(self) -> None:
        pass


IGNORING = _IgnoringHandler()


@dataclass(frozen=True, slots=True)
class Method:
    """`start` begins a call; `streams` if more than one message goes either way."""

    start: Callable[[Call], CallHandler]
    streams: bool = False


#: Bytes of a message that are read at once; longer ones are read away from the loop.
_SHORT = 1 << 12
#: What a call's message is answered with, or the work that gives it.
Considered: TypeAlias = "Answer | Callable[[], Answer]"


class _OneMessageCall(Generic[RequestT]):
    """A call whose one message `consider` answers, or gives the work for it, which `run` does.

    `reading` is for messages that are long.
    """

    __slots__ = ("_call", "_consider", "_reading", "_request_type", "_run")

    def __init__(
        self,
        call: Call,
        request_type: type[RequestT],
        consider: Callable[[RequestT], Considered],
        reading: Run,
        run: Run,
    ) -> None:
        self._call = call
        self._request_type = request_type
        self._consider = consider
        self._reading = reading
        self._run = run

    def receive(self, message: Data) -> None:
        if len(message) > _SHORT:
            self._reading(lambda: self._read(message), self._received, self._failed)
            return
        try:
            request = self._read(message)
        except ServerError as error:
            self._failed(error)
        else:
            self._received(request)

    def half_close(self) -> None:
        """Nothing follows the one message in any case."""

    def cancel(self) -> None:
        """What was asked for is done all the same."""

    def _read(self, data: Data) -> RequestT:
        request: RequestT = self._request_type()
        try:
            proto_pieces.merge(request, data)
        except DecodeError:
            raise internal(UNREADABLE) from None
        return request

    def _received(self, request: RequestT) -> None:
        try:
            answer = self._consider(request)
        except Exception as error:  # a defect of ours must not leave the client waiting
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
    """A method that `answer` gives the response of; it may raise ServerError."""
    return maybe_blocking(request_type, answer, reading, reading)


def blocking(
    request_type: type[RequestT],
    answer: Callable[[RequestT], Answer],
    reading: Background,
    background: Background,
) -> Method:
    """As `immediate`, where `answer` blocks and is left to a thread of its own."""
    return maybe_blocking(
        request_type, lambda request: lambda: answer(request), reading, background
    )


def maybe_blocking(
    request_type: type[RequestT],
    answer: Callable[[RequestT], Considered],
    reading: Background,
    background: Background,
) -> Method:
    """As `immediate`, where `answer` may give work that blocks and has the response as its result.

    That is left to a thread of its own.
    """
    return Method(
        lambda call: _OneMessageCall(call, request_type, answer, reading.run, background.run)
    )


def _serialized(answer: Answer) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def described_defect(defect: Exception) -> ServerError:
    """What a client is told of a defect; the log is told more."""
    log.error("gRPC", exc_info=defect)
    return internal(f"{type(defect).__name__}: {defect}")
