"""An inference request on its way from a frontend to a model, its responses, and their way back.

A response travels through the sink that its request carries: `deliver` hands it over.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from reference_server.core.backlog import Backlog
from reference_server.core.errors import Contained, ServerError, unsupported
from reference_server.core.tensor import Tensor

log = logging.getLogger(__name__)

Parameter = bool | int | float | str
#: The version that a request without one asks for.
LATEST = -1
#: A defect of a trace, or a full disk, does not cost the answer.
TRACING = Contained("what became of a request was not traced")
_LONGEST_CORRELATION_ID = 128
# One lock for all requests: only a cancellation, and the few who watch for one, take it.
_lock = threading.Lock()


class SequenceFlag(enum.IntFlag):
    """What `flags()` of a request tells a model."""

    NONE = 0
    START = 1
    END = 2


class ResponseSink(Protocol):
    """Where the responses to one request go: any number of them, in order, the last one final.

    Whoever is between a request and its frontend (an ensemble, a cache, an ordered queue) puts
    a sink of its own in front of the one that it found.
    """

    def send(self, response: InferResponse) -> None:
        """Take one response; the last has `final` set. Called from any thread; never blocks."""


class RequestTrace(Protocol):
    """Records what happens to one request. Any thread, one at a time.

    The frontend that began it closes it; the trace of an ensemble's step ends with its answer.
    """

    def stamp(self, name: str, ns: int | None = None) -> None:
        """Record that `name` happened at `ns` of the monotonic clock, or now."""

    def accepted(self, model: str, version: int, request: InferRequest) -> None:
        """The request has passed its checks and is queued."""

    def answered(
        self, outputs: Sequence[Tensor], execution_ns: tuple[int, int, int] | None = None
    ) -> None:
        """The request has its answer, with these outputs, or none if it is an error.

        `execution_ns` are when an instance began, had its inputs, and had its outputs.
        """

    @property
    def context(self) -> str:
        """The headers by which others add to this trace, as a JSON object; empty if none can."""

    def record(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Parameter]
    ) -> None:
        """Record what the model did, as a part of its execution; `ns` of the monotonic clock."""

    def child(self) -> RequestTrace:
        """The trace of a request that is sent on behalf of this one."""

    def close(self) -> None:
        """Nothing more will be recorded."""


class Cancellation:
    """Set once, never reset. Any thread.

    Whoever sends responses one by one waits for room in the `backlog` of who asked, if it has one.
    """

    __slots__ = ("_watchers", "backlog", "is_cancelled")

    def __init__(self) -> None:
        self.is_cancelled = False
        self.backlog: Backlog | None = None
        self._watchers: list[Callable[[], None]] | None = None

    def cancel(self) -> None:
        """Tell everyone that the result is not wanted any more. Runs what watches, once."""
        with _lock:
            if self.is_cancelled:
                return
            self.is_cancelled = True
            watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` when it is cancelled: now, if it is; on the thread that cancels."""
        with _lock:
            if not self.is_cancelled:
                if self._watchers is None:
                    self._watchers = []
                self._watchers.append(watcher)
                return
        watcher()

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Forget `watcher`, if it has not been called."""
        with _lock:
            if self._watchers is not None and watcher in self._watchers:
                self._watchers.remove(watcher)


@dataclass(slots=True)
class InferRequest:
    """One request. Belongs to one holder at a time: frontend, scheduler, instance.

    `inputs` has the client's order, and once it is admitted that of Triton's table: `hash_order`.
    `requested_outputs` is empty when all are wanted.
    `batch_key`: only requests with equal keys may share a batch. `batch_size` is 0 for a request of
    no client, which fills the place of a sequence that has none.
    `*_ns` are readings of the monotonic clock in nanoseconds; 0 means not reached yet.
    `cancellation` is shared with what is done on behalf of this request (an ensemble's steps).
    `pattern`, if there is one, is the same object for all requests that differ in the bytes of
    their tensors alone. `trace` is None unless this request is recorded. `is_begun`: an instance
    has been given it.
    `timed`, if anybody wants to know, is told of an execution that has not given its response.
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
    is_begun: bool = False
    timed: Callable[[Timing], None] | None = None

    @property
    def label(self) -> str:
        """How texts about this request begin: `[request id: <id>]`, as Triton prints it."""
        return f"[request id: {self.id or '<id_unknown>'}]"


def deliver(sink: ResponseSink, response: InferResponse) -> None:
    """Send `response` to `sink`. Any thread; an exception of the sink is logged and ends here.

    So a defect of whoever takes an answer ends neither an instance nor the answers of others.
    """
    try:
        sink.send(response)
    except Exception:
        name, version = response.model_name, response.model_version
        log.exception("a response of %s version %d to '%s' was lost", name, version, response.id)


def answer(request: InferRequest, response: InferResponse) -> None:
    """The same for the only response to a request that no instance has executed.

    Ends its trace, if it has one.
    """
    if request.trace is not None:
        with TRACING:
            request.trace.answered(response.outputs)
    deliver(request.sink, response)


def string_id(text: str) -> str:
    """`text` as the id of a sequence; what is no text in it stands as lone surrogates.

    Raises ServerError UNSUPPORTED if it has more than 128 bytes; Triton's text says characters.
    """
    if len(text.encode("utf-8", "surrogateescape")) > _LONGEST_CORRELATION_ID:
        raise unsupported(
            f"string correlation ID cannot be longer than {_LONGEST_CORRELATION_ID} characters"
        )
    return text


class Timing(NamedTuple):
    """How long the three parts of an execution took, in nanoseconds."""

    input_ns: int
    infer_ns: int
    output_ns: int


@dataclass(slots=True)
class InferResponse:
    """One of the answers of a model; with `error` set, `outputs` means nothing.

    `final` is set on the last. `empty`: it is the final mark alone, without an answer.

    `parameters` are pairs, not a mapping, because Triton's ensembles repeat keys. `timing` is
    set once the execution has been recorded.
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
    """What one execution of an instance gave, and when its parts ended (monotonic ns).

    `responses` has one entry per request, in order; None where the model answers, or has answered,
    through the request's sink itself. `rescheduled` are the places of requests that the model wants
    to be given again. `failed`: the batch failed as a whole, and the model's host has told so to
    whoever was not answered before.
    """

    responses: Sequence[InferResponse | None]
    input_end_ns: int
    output_start_ns: int
    rescheduled: frozenset[int] = frozenset()
    failed: bool = False
