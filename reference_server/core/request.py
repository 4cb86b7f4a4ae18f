"""Inference requests and their responses. `deliver` sends a response to the request's sink."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Union

from reference_server.core.backlog import Backlog
from reference_server.core.errors import Contained, ServerError, unsupported
from reference_server.core.tensor import Tensor

log = logging.getLogger(__name__)

Parameter = Union[bool, int, float, str]  # noqa: UP007 - for Python 3.9
#: The model version of a request that names no version.
LATEST = -1
#: Keeps an error of a trace, such as a full disk, from affecting the request.
TRACING = Contained("the trace of a request is incomplete")
_LONGEST_CORRELATION_ID = 128
# One lock for all requests: only cancellations and their watchers use it.
_lock = threading.Lock()


class SequenceFlag(enum.IntFlag):
    """The flags of a request in a sequence, as `flags()` returns them to a model."""

    NONE = 0
    START = 1
    END = 2


class ResponseSink(Protocol):
    """Receives the responses of one request, in order. The last one is final.

    A component between scheduler and frontend, such as an ensemble or the cache, wraps the sink of
    the request.
    """

    def send(self, response: InferResponse) -> None:
        """Receive one response; `final` is set on the last. Thread-safe; never blocks."""


class RequestTrace(Protocol):
    """Records the events of one request. May be used by any thread, but by one at a time.

    The frontend that started the trace closes it. The trace of an ensemble's step ends with its
    response.
    """

    def stamp(self, name: str, ns: int | None = None) -> None:
        """Record the event `name` at `ns` of the monotonic clock, by default now."""

    def accepted(self, model: str, version: int, request: InferRequest) -> None:
        """Record that the request passed its checks and is queued."""

    def answered(
        self, outputs: Sequence[Tensor], execution_ns: tuple[int, int, int] | None = None
    ) -> None:
        """Record the response.

        Args:
            outputs: The outputs; empty for an error.
            execution_ns: The times when the execution started, its inputs were ready, and its
                outputs were ready.
        """

    @property
    def context(self) -> str:
        """The headers that propagate this trace, as a JSON object; empty if there are none."""

    def record(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Parameter]
    ) -> None:
        """Record a span of the model during its execution; times of the monotonic clock."""

    def child(self) -> RequestTrace:
        """Return the trace of a request that is sent on behalf of this one."""

    def close(self) -> None:
        """End the trace."""


class Cancellation:
    """A cancellation flag, which is set once and never reset. Thread-safe.

    `backlog` holds the unread responses of the client. A decoupled model waits there for room.
    """

    __slots__ = ("_watchers", "backlog", "is_cancelled")

    def __init__(self) -> None:
        self.is_cancelled = False
        self.backlog: Backlog | None = None
        self._watchers: list[Callable[[], None]] | None = None

    def cancel(self) -> None:
        """Set the flag and call the watchers, once."""
        with _lock:
            if self.is_cancelled:
                return
            self.is_cancelled = True
            watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` on the thread that cancels; immediately if the flag is already set."""
        with _lock:
            if not self.is_cancelled:
                if self._watchers is None:
                    self._watchers = []
                self._watchers.append(watcher)
                return
        watcher()

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Remove `watcher`, if it has not been called."""
        with _lock:
            if self._watchers is not None and watcher in self._watchers:
                self._watchers.remove(watcher)


@dataclass(slots=True)
class InferRequest:
    """One request. It has one owner at a time: frontend, scheduler or instance.

    Attributes:
        inputs: In the client's order; after admission in the order of Triton (`core.cpp`).
        requested_outputs: Empty for all outputs.
        batch_size: The number of rows; 0 for a placeholder in the slot of an idle sequence.
        batch_key: Only requests with equal keys may share a batch.
        received_ns, queued_ns: Times of the monotonic clock in nanoseconds; 0: not reached yet.
        cancellation: Shared with the requests sent on behalf of this one, such as ensemble steps.
        pattern: The same object for all requests that differ only in tensor contents, if known.
        trace: None unless this request is traced.
        is_started: An instance has received the request.
        timed: Called with the timing of an execution that does not end with a response, if set.
    """

    model_name: str
    inputs: dict[str, Tensor]
    sink: ResponseSink
    model_version: int = LATEST
    id: str = ""
    requested_outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    correlation_id: int | str = 0
    flags: SequenceFlag = SequenceFlag.NONE
    priority: int = 0
    timeout_us: int = 0
    batch_size: int = 1
    batch_key: Hashable = None
    received_ns: int = 0
    queued_ns: int = 0
    cancellation: Cancellation = field(default_factory=Cancellation)
    pattern: Hashable = None
    trace: RequestTrace | None = None
    is_started: bool = False
    timed: Callable[[Timing], None] | None = None

    @property
    def label(self) -> str:
        """The start of error texts about this request: `[request id: <id>]`, as in Triton."""
        return label(self.id)


def label(request_id: str) -> str:
    """Return the start of texts about the request with this id."""
    return f"[request id: {request_id or '<id_unknown>'}]"


def deliver(sink: ResponseSink, response: InferResponse) -> None:
    """Send `response` to `sink`. Thread-safe. An exception of the sink is logged and suppressed.

    So an error in one receiver affects neither the instance nor other responses.
    """
    try:
        sink.send(response)
    except Exception:
        name, version = response.model_name, response.model_version
        log.exception("a response of %s version %d to '%s' was lost", name, version, response.id)


def answer(request: InferRequest, response: InferResponse) -> None:
    """Send the only response of a request that no instance has executed, and end its trace."""
    if request.trace is not None:
        with TRACING:
            request.trace.answered(response.outputs)
    deliver(request.sink, response)


def string_id(text: str) -> str:
    """Return `text`, the id of a sequence, after checking its length.

    Bytes that are not UTF-8 are lone surrogates in `text`.

    Raises:
        ServerError: UNSUPPORTED; it has more than 128 bytes, which Triton calls characters.
    """
    if len(text.encode("utf-8", "surrogateescape")) > _LONGEST_CORRELATION_ID:
        raise unsupported(
            f"string correlation ID cannot be longer than {_LONGEST_CORRELATION_ID} characters"
        )
    return text


class Timing(NamedTuple):
    """The durations of the three parts of an execution, in nanoseconds."""

    input_ns: int
    infer_ns: int
    output_ns: int


@dataclass(slots=True)
class InferResponse:
    """A response of a model.

    Attributes:
        parameters: Pairs instead of a mapping, because Triton's ensembles repeat keys.
        error: If set, `outputs` has no meaning.
        final: True for the last response.
        empty: True for a final response that only ends the request.
        timing: Set when the execution has been recorded.
    """

    model_name: str
    model_version: int
    id: str
    outputs: Sequence[Tensor] = ()
    parameters: Sequence[tuple[str, bool | int | float | str]] = ()
    error: ServerError | None = None
    final: bool = True
    empty: bool = False
    timing: Timing | None = None


class Execution(NamedTuple):
    """The result of one execution of an instance.

    Attributes:
        responses: One entry per request, in order; None if the model itself sends, or has sent, the
            responses through the request's sink.
        input_end_ns, output_start_ns: Times of the monotonic clock: the inputs were ready, and the
            model started to return the outputs.
        rescheduled: The indexes of requests that the model wants to receive again.
        failed: The batch failed as a whole, and the model's host has reported the error to all
            requests without a response.
    """

    responses: Sequence[InferResponse | None]
    input_end_ns: int
    output_start_ns: int
    rescheduled: frozenset[int] = frozenset()
    failed: bool = False
