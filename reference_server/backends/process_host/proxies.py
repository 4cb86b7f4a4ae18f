"""Proxies of the server in the child process: their calls are messages over the connection."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from reference_server.backends.process_host import messages
from reference_server.backends.process_host.connection import Connection, Handler
from reference_server.backends.process_host.parcels import Parcel, ReceivedParcel
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
    """Calls methods of the server and waits for their results. Any thread but the receiving one.

    `handlers` are what the receiving thread does with the messages that come back.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._numbers = itertools.count()
        self._generation = forks.generation
        self._waiting: dict[int, queue.SimpleQueue[ServerError | tuple[Any]]] = {}
        self.handlers: Mapping[str, Handler] = {"result": self._result, "refused": self._refused}

    def call(self, method: str, *arguments: Any, parcel: Parcel | None = None) -> Any:  # noqa: ANN401 - JSON's values
        """What `method` of the server's side returns. Blocks; raises ServerError."""
        if self._generation != forks.generation:  # nobody receives here
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
    """ModelCalls over the connection. Responses come on the thread that receives."""

    def __init__(self, server: RpcClient, requests: ReceivedRequests) -> None:
        self._connection = server.connection
        self._server = server
        self._requests = requests
        self._numbers = itertools.count()
        self._bls_requests: dict[int, tuple[InferRequest, Callable[[], None]]] = {}
        self.handlers: Mapping[str, Handler] = {"answer": self._answered}

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether the loaded model answers as often as it likes."""
        return bool(self._server.call("is_decoupled", name, version))

    def is_ready(self, name: str, version: int) -> bool:
        """Whether that version, or with -1 the latest, can be asked."""
        return bool(self._server.call("is_ready", name, version))

    def infer(self, request: InferRequest, halted: Sequence[InferRequest] | None = None) -> None:
        """Send a request the way a client's goes; does not wait for its responses."""
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
            cancel()  # the first time the server may not have known the request yet

    def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model. Blocks."""
        parcel = Parcel(self._connection)
        put = {path: parcel.put(memoryview(content)) for path, content in files.items()}
        self._server.call("load", name, config, put, parcel=parcel)

    def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Begin to unload a model."""
        self._server.call("unload", name, unload_dependents)

    def _answered(self, number: int, packed: messages.Packed, parcel: ReceivedParcel) -> None:
        request, cancel = self._bls_requests[number]
        response = messages.unpack_response(parcel, packed)
        if response.final:
            del self._bls_requests[number]
            request.cancellation.unwatch(cancel)
        request.sink.send(response)


class MetricsProxy:
    """Metrics over the connection."""

    def __init__(self, server: RpcClient) -> None:
        self._server = server

    def hold(self, name: str, description: str, kind: MetricKind) -> MetricFamilyProxy:
        """A hold on the family of that name. Raises ServerError."""
        number = self._server.call("hold", name, description, kind.name)
        return MetricFamilyProxy(self._server, number)


class MetricFamilyProxy:
    """A MetricFamilyHold over the connection."""

    def __init__(self, server: RpcClient, number: int) -> None:
        self._server = server
        self._number = number
        self.is_held = True

    def series(self, labels: Mapping[str, str], bounds: Sequence[float]) -> MetricSeriesProxy:
        """The family's series with these labels. Raises ServerError."""
        number = self._server.call("series", self._number, dict(labels), list(bounds))
        return MetricSeriesProxy(self._server, number)

    def release(self) -> None:
        """Let go of the series."""
        self.is_held = False
        # Not `send`, which takes a lock: the garbage collector calls this.
        self._server.connection.send_later("release", self._number)


class MetricSeriesProxy:
    """A MetricSeries over the connection."""

    def __init__(self, server: RpcClient, number: int) -> None:
        self._server = server
        self._number = number

    def increment(self, amount: float) -> None:
        """Add `amount`."""
        self._server.call("move", self._number, "increment", amount)

    def set(self, value: float) -> None:
        """Replace the value."""
        self._server.call("move", self._number, "set", value)

    def observe(self, value: float) -> None:
        """Count one value of a distribution."""
        self._server.call("move", self._number, "observe", value)

    def value(self) -> float:
        """The value now."""
        value: float = self._server.call("value", self._number)
        return value

    def __del__(self) -> None:
        self._server.connection.send_later("forget", self._number)  # takes no lock


class ReceivedRequests:
    """The requests that the server has given to this process, as long as it may cancel them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Not the requests: what a model keeps of them is its own affair, the rest is let go.
        self._in_flight: dict[int, Cancellation] = {}
        self._backlogs = Backlogs()
        # What is told of requests may come before these do: events do not wait for jobs.
        self._lock = threading.Lock()
        self._next = 0
        self._early: dict[int, list[Callable[[Cancellation], None]]] = {}
        self.handlers: Mapping[str, Handler] = {"cancel": self._cancel, "full": self._become}

    def begin(self) -> None:
        """An instance is open: its requests are numbered from 0."""
        self._next = 0

    def receive(
        self, first: int, packed: Sequence[messages.Packed], parcel: ReceivedParcel
    ) -> list[InferRequest]:
        """The requests of a batch, numbered from `first`."""
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
        for number, told in early.items():
            for tell in told:
                tell(requests[number - first].cancellation)
        return requests

    def numbers_of(self, requests: Sequence[InferRequest]) -> list[int]:
        """The numbers of those of `requests` that are not answered yet."""
        # Requests cannot be told by their values; each has a cancellation of its own.
        wanted = {id(request.cancellation) for request in requests}
        return [number for number, known in self._in_flight.copy().items() if id(known) in wanted]

    def answered(self, number: int) -> None:
        """Forget a request that has had its last response, or was given back."""
        self._in_flight.pop(number, None)

    def _tell(self, number: int, tell: Callable[[Cancellation], None]) -> None:
        """Tell a request something, now or when it comes; nothing if it is answered."""
        with self._lock:
            if number >= self._next:
                self._early.setdefault(number, []).append(tell)
                return
            cancellation = self._in_flight.get(number)
        if cancellation is not None:
            tell(cancellation)

    def _cancel(self, number: int) -> None:
        self._tell(number, Cancellation.cancel)

    def _become(self, number: int, full: bool) -> None:
        """The client of a request has enough to read, or no longer."""

        def tell(cancellation: Cancellation) -> None:
            if cancellation.backlog is None:
                cancellation.backlog = Backlog(self._backlogs)
            cancellation.backlog.become(full=full)

        self._tell(number, tell)


class TraceProxy:
    """The trace of the server's request `number`; what happens to that is recorded there."""

    def __init__(self, connection: Connection, number: int, context: str) -> None:
        self._connection = connection
        self.number = number
        self.context = context

    def stamp(self, name: str, ns: int | None = None) -> None:
        """Nothing happens here that is recorded."""

    def accepted(self, model: str, version: int, request: InferRequest) -> None:
        """It was accepted in the server."""

    def answered(
        self, outputs: Sequence[Tensor], execution_ns: tuple[int, int, int] | None = None
    ) -> None:
        """It is answered in the server."""

    def record(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Parameter]
    ) -> None:
        """The server records it."""
        if self.context:
            self._connection.send("span", self.number, name, start_ns, end_ns, dict(attributes))

    def child(self) -> TraceProxy:
        """For a request on its behalf; the server makes the trace when it gets that."""
        return self

    def close(self) -> None:
        """The server closes what it has made."""


class _Sink:
    """Where a request's responses go that do not come out of `execute`."""

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
