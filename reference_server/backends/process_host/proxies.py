"""Proxies of the server in the child process. They send each call over the connection."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from reference_server.backends.process_host import messages
from reference_server.backends.process_host.connection import Connection, Handler
from reference_server.backends.process_host.messages import Parcel, ReceivedParcel
from reference_server.core import forks
from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import Code, ServerError, unavailable
from reference_server.core.request import (
    Cancellation,
    InferRequest,
    InferResponse,
    Parameter,
)
from reference_server.core.telemetry import MetricKind
from reference_server.core.tensor import Tensor


class RpcClient:
    """Calls methods of the server and waits for the results.

    `call` would never return on the receiving thread, because that thread runs `handlers`, the
    event handlers that deliver the results.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._numbers = itertools.count()
        self._generation = forks.generation
        self._waiting: dict[int, queue.SimpleQueue[ServerError | tuple[Any]]] = {}
        self.handlers: Mapping[str, Handler] = {"result": self._result, "refused": self._refused}

    def call(self, method: str, *arguments: Any, parcel: Parcel | None = None) -> Any:  # noqa: ANN401 - JSON's values
        """Call `method` of the server and return its result. Blocks; raises ServerError."""
        if self._generation != forks.generation:  # a forked child has no receiving thread
            raise unavailable(forks.NO_SERVER)
        number = next(self._numbers)
        answer = self._waiting[number] = queue.SimpleQueue()
        self.connection.send("call", number, method, *arguments, parcel=parcel)
        outcome = answer.get()
        if isinstance(outcome, ServerError):
            raise outcome
        return outcome[0]

    def _result(self, number: int, value: Any) -> None:  # noqa: ANN401 - JSON's values
        self._waiting.pop(number).put((value,))

    def _refused(self, number: int, code: str, text: str) -> None:
        self._waiting.pop(number).put(ServerError(Code[code], text))


class ModelCallsProxy:
    """An implementation of `ModelCalls` that sends each call over the connection.

    Responses arrive on the receiving thread.
    """

    def __init__(self, server: RpcClient, requests: ReceivedRequests) -> None:
        self._connection = server.connection
        self._server = server
        self._requests = requests
        self._numbers = itertools.count()
        self._bls_requests: dict[int, tuple[InferRequest, Callable[[], None]]] = {}
        self.handlers: Mapping[str, Handler] = {"answer": self._answered}

    def is_decoupled(self, name: str, version: int) -> bool:
        return bool(self._server.call("is_decoupled", name, version))

    def is_ready(self, name: str, version: int) -> bool:
        return bool(self._server.call("is_ready", name, version))

    def infer(self, request: InferRequest, halted: Sequence[InferRequest] | None = None) -> None:
        number = next(self._numbers)

        def cancel() -> None:
            self._connection.send("give_up", number)

        self._bls_requests[number] = request, cancel
        request.cancellation.watch(cancel)
        try:
            parcel = Parcel(self._connection)
            packed = messages.pack_request(parcel, request)
            numbers = None if halted is None else self._requests.numbers_of(halted)
            trace = request.trace
            traced = trace.number if isinstance(trace, TraceProxy) else None
            self._server.call("infer", number, packed, numbers, traced, parcel=parcel)
        except ServerError:
            del self._bls_requests[number]
            request.cancellation.unwatch(cancel)
            raise
        if request.cancellation.is_cancelled:
            cancel()  # again: the server ignores a `give_up` that arrives before the request

    def load(
        self,
        name: str,
        config: str | None,
        files: Mapping[str, bytes],
        *,
        initializing: bool = False,
    ) -> None:
        parcel = Parcel(self._connection)
        put = {path: parcel.put(memoryview(content)) for path, content in files.items()}
        self._server.call("load", name, config, put, initializing, parcel=parcel)

    def unload(self, name: str, *, unload_dependents: bool, initializing: bool = False) -> None:
        self._server.call("unload", name, unload_dependents, initializing)

    def _answered(self, number: int, packed: messages.Packed, parcel: ReceivedParcel) -> None:
        request, cancel = self._bls_requests[number]
        response = messages.unpack_response(parcel, packed)
        if response.final:
            del self._bls_requests[number]
            request.cancellation.unwatch(cancel)
        request.sink.send(response)


class MetricsProxy:
    """An implementation of `Metrics` over the connection."""

    def __init__(self, server: RpcClient) -> None:
        self._server = server

    def hold(self, name: str, description: str, kind: MetricKind) -> MetricFamilyProxy:
        number = self._server.call("hold", name, description, kind.name)
        return MetricFamilyProxy(self._server, number)


class MetricFamilyProxy:
    """An implementation of `MetricFamilyHold` over the connection."""

    def __init__(self, server: RpcClient, number: int) -> None:
        self._server = server
        self._number = number
        self.is_held = True

    def series(self, labels: Mapping[str, str], bounds: Sequence[float]) -> MetricSeriesProxy:
        number = self._server.call("series", self._number, dict(labels), list(bounds))
        return MetricSeriesProxy(self._server, number)

    def release(self) -> None:
        self.is_held = False
        # The garbage collector may call this, so it must not take a lock as `send` does.
        self._server.connection.send_later("release", self._number)


class MetricSeriesProxy:
    """An implementation of `MetricSeries` over the connection."""

    def __init__(self, server: RpcClient, number: int) -> None:
        self._server = server
        self._number = number

    def increment(self, amount: float) -> None:
        self._server.call("move", self._number, "increment", amount)

    def set(self, value: float) -> None:
        self._server.call("move", self._number, "set", value)

    def observe(self, value: float) -> None:
        self._server.call("move", self._number, "observe", value)

    def value(self) -> float:
        value: float = self._server.call("value", self._number)
        return value

    def __del__(self) -> None:
        self._server.connection.send_later("forget", self._number)  # takes no lock


class ReceivedRequests:
    """The requests that this process has received and that the server may cancel."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Holds no requests: when the model drops a request, its tensors must be freed.
        self._in_flight: dict[int, Cancellation] = {}
        self._backlogs = Backlogs()
        # Requests arrive in jobs, events on another socket: an event may precede its request.
        self._lock = threading.Lock()
        self._next = 0
        self._early: dict[int, list[Callable[[Cancellation], None]]] = {}
        self.handlers: Mapping[str, Handler] = {"cancel": self._cancel, "full": self._set_full}

    def begin(self) -> None:
        """Start a new instance, whose requests are numbered from 0."""
        self._next = 0

    def receive(
        self, first: int, packed: Sequence[messages.Packed], parcel: ReceivedParcel
    ) -> list[InferRequest]:
        """Return the requests of a batch, numbered from `first`."""
        requests: list[InferRequest] = []
        for number, one in enumerate(packed, first):
            sink = _Sink(self, self._connection, number)
            traced = partial(TraceProxy, self._connection, number)
            requests.append(messages.unpack_request(parcel, one, sink, traced))
        with self._lock:
            self._next = first + len(requests)
            for number, request in enumerate(requests, first):
                self._in_flight[number] = request.cancellation
            early, self._early = self._early, {}
        for number, actions in early.items():
            for action in actions:
                action(requests[number - first].cancellation)
        return requests

    def numbers_of(self, requests: Sequence[InferRequest]) -> list[int]:
        """Return the numbers of the unanswered requests in `requests`."""
        # Compared by their cancellations: the requests themselves are not stored here.
        wanted = {id(request.cancellation) for request in requests}
        return [number for number, known in self._in_flight.copy().items() if id(known) in wanted]

    def answered(self, number: int) -> None:
        """Remove a request that is answered or rescheduled."""
        self._in_flight.pop(number, None)

    def _apply(self, number: int, action: Callable[[Cancellation], None]) -> None:
        """Apply an action to a request, now or at its arrival; no-op for an answered request."""
        with self._lock:
            if number >= self._next:
                self._early.setdefault(number, []).append(action)
                return
            cancellation = self._in_flight.get(number)
        if cancellation is not None:
            action(cancellation)

    def _cancel(self, number: int) -> None:
        self._apply(number, Cancellation.cancel)

    def _set_full(self, number: int, full: bool) -> None:
        """Set whether the client of a request has a full backlog."""

        def set_full(cancellation: Cancellation) -> None:
            if cancellation.backlog is None:
                cancellation.backlog = Backlog(self._backlogs)
            cancellation.backlog.become(full=full)

        self._apply(number, set_full)


class TraceProxy:
    """The trace of request `number`; the server records most events itself."""

    def __init__(self, connection: Connection, number: int, context: str) -> None:
        self._connection = connection
        self.number = number
        self.context = context

    def stamp(self, name: str, ns: int | None = None) -> None:
        """No-op: the server records the timestamps."""

    def accepted(self, model: str, version: int, request: InferRequest) -> None:
        """No-op: the server records this event."""

    def answered(
        self, outputs: Sequence[Tensor], execution_ns: tuple[int, int, int] | None = None
    ) -> None:
        """No-op: the server records this event."""

    def record(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Parameter]
    ) -> None:
        if self.context:
            self._connection.send("span", self.number, name, start_ns, end_ns, dict(attributes))

    def child(self) -> TraceProxy:
        """Return this trace; the server creates the child when it receives the request."""
        return self

    def close(self) -> None:
        """No-op: the server closes its own trace."""


class _Sink:
    """The sink for responses that are not results of `execute`."""

    def __init__(self, requests: ReceivedRequests, connection: Connection, number: int) -> None:
        self._requests = requests
        self._connection = connection
        self._number = number

    def send(self, response: InferResponse) -> None:
        if response.final:
            self._requests.answered(self._number)
        parcel = Parcel(self._connection)
        packed = messages.pack_response(parcel, response)
        self._connection.send("response", self._number, packed, parcel=parcel)
