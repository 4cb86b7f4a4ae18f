"""The server's side of a model's process: calls from the process, and requests in flight."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reference_server.backends.process_host import messages
from reference_server.backends.process_host.connection import Connection, Handler
from reference_server.backends.process_host.messages import Parcel, ReceivedParcel
from reference_server.backends.process_host.process import ChildProcess
from reference_server.core.errors import Code, ServerError
from reference_server.core.ports import MetricFamilyHold, Metrics, MetricSeries, ModelCalls
from reference_server.core.request import InferRequest, InferResponse, Parameter
from reference_server.core.telemetry import MetricKind

log = logging.getLogger(__name__)

#: Numbers of the metric families and series of all processes; no number is used twice.
_numbers = itertools.count()


class CallDispatcher:
    """Handles the calls of one process, on the thread that receives its events.

    `handlers` are the event handlers. `responded` receives the responses of the process that are
    not results of `execute`. `in_flight` returns an unanswered request by its number. `report`
    receives the keys of portability rows.
    """

    def __init__(
        self,
        connection: Connection,
        metrics: Metrics,
        calls: ModelCalls,
        responded: Callable[[int, messages.Packed, ReceivedParcel], None],
        in_flight: Callable[[int], InferRequest | None],
        report: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._metrics = metrics
        self._calls = calls
        self._in_flight = in_flight
        # The holds are not released when a process dies: its successor continues the same series.
        self._holds: dict[int, MetricFamilyHold] = {}
        self._series: dict[int, MetricSeries] = {}
        self._bls_requests: dict[int, InferRequest] = {}
        self._methods: Mapping[str, Callable[..., Any]] = {
            "is_decoupled": calls.is_decoupled,
            "is_ready": calls.is_ready,
            "infer": self._infer,
            "hold": self._hold,
            "series": self._new_series,
            "move": self._update_series,
            "value": lambda number: self._series[number].value(),
        }
        # Loading takes as long as the model does and may wait for this process. So each of these
        # calls runs on its own thread.
        self._blocking: Mapping[str, Callable[..., Any]] = {
            "load": self._load,
            "unload": self._unload,
        }
        self.handlers: Mapping[str, Handler] = {
            "call": self._call,
            "give_up": self._cancel_bls_request,
            "release": lambda number: self._holds.pop(number).release(),
            "forget": self._forget,
            "response": responded,
            "log": write_record,
            "found": report,
            "span": self._record_span,
        }

    def end(self) -> None:
        # No process is left to receive the responses to its BLS requests.
        for request in list(self._bls_requests.values()):
            request.cancellation.cancel()

    def _call(self, number: int, method: str, *arguments: Any) -> None:  # noqa: ANN401
        if method in self._blocking:
            function = self._blocking[method]
            thread = threading.Thread(
                target=self._answer, args=(number, function, arguments), name=method, daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the system allows no more threads
                text = f"{method}: cannot start a thread: {error}"
                self._connection.send("refused", number, Code.UNAVAILABLE.name, text)
        else:
            self._answer(number, self._methods[method], arguments)

    def _answer(self, number: int, function: Callable[..., Any], arguments: tuple[Any]) -> None:
        try:
            result = function(*arguments)
        except ServerError as error:
            self._connection.send("refused", number, error.code.name, error.message)
        except Exception as error:  # a defect must not leave the model waiting
            log.exception("a call of a model's process failed")
            self._connection.send(
                "refused", number, Code.INTERNAL.name, f"{type(error).__name__}: {error}"
            )
        else:
            self._connection.send("result", number, result)

    # ------------------------------------------------------------------------ BLS and models

    def _infer(
        self,
        number: int,
        packed: messages.Packed,
        halted: list[int] | None,
        traced: int | None,
        parcel: ReceivedParcel,
    ) -> None:
        request = messages.unpack_request(parcel, packed, _Sink(self, number))
        parent = None if traced is None else self._in_flight(traced)
        if parent is not None and parent.trace is not None:
            request.trace = parent.trace.child()
        self._bls_requests[number] = request
        try:
            if halted is None:
                self._calls.infer(request)
            else:
                # By number, because the process has request objects of its own.
                waiting = [found for n in halted if (found := self._in_flight(n)) is not None]
                self._calls.infer(request, waiting)
        except ServerError:
            del self._bls_requests[number]
            if request.trace is not None:
                request.trace.close()
            raise

    def responded(self, number: int, response: InferResponse) -> None:
        """Send a response to a BLS request of the process. Thread-safe."""
        if response.final:
            self._bls_requests.pop(number, None)
        parcel = Parcel(self._connection)
        packed = messages.pack_response(parcel, response)
        self._connection.send("answer", number, packed, parcel=parcel)

    def _record_span(
        self,
        number: int,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Parameter],
    ) -> None:
        if (request := self._in_flight(number)) is not None and request.trace is not None:
            request.trace.record(name, start_ns, end_ns, attributes)

    def _cancel_bls_request(self, number: int) -> None:
        request = self._bls_requests.get(number)
        if request is not None:
            request.cancellation.cancel()

    def _load(
        self,
        name: str,
        config: str | None,
        files: Mapping[str, tuple[int, int]],
        initializing: bool,
        parcel: ReceivedParcel,
    ) -> None:
        contents = {path: bytes(parcel.view(*place)) for path, place in files.items()}
        self._calls.load(name, config, contents, initializing=initializing)

    def _unload(self, name: str, dependents: bool, initializing: bool) -> None:
        self._calls.unload(name, unload_dependents=dependents, initializing=initializing)

    # -------------------------------------------------------------------------------- metrics

    def _hold(self, name: str, description: str, kind: str) -> int:
        number = next(_numbers)
        self._holds[number] = self._metrics.hold(name, description, MetricKind[kind])
        return number

    def _new_series(self, hold: int, labels: Mapping[str, str], bounds: list[float]) -> int:
        number = next(_numbers)
        self._series[number] = self._holds[hold].series(labels, bounds)
        return number

    def _forget(self, number: int) -> None:
        del self._series[number]

    def _update_series(self, number: int, verb: str, value: float) -> None:
        series = self._series[number]
        moves = {"increment": series.increment, "set": series.set, "observe": series.observe}
        moves[verb](value)


class _Sink:
    """The sink of a BLS request."""

    def __init__(self, dispatcher: CallDispatcher, number: int) -> None:
        self._dispatcher = dispatcher
        self._number = number

    def send(self, response: InferResponse) -> None:
        self._dispatcher.responded(self._number, response)


def write_record(name: str, level: int, path: str, line: int, text: str, created: float) -> None:
    """Write a log record of the process into the server's log."""
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        record = logger.makeRecord(name, level, path, line, text, (), None)
        record.created = created
        logger.handle(record)


# ------------------------------------------------------------------- the requests in flight


@dataclass(slots=True)
class _Entry:
    request: InferRequest
    child: ChildProcess
    cancel: Callable[[], None] | None = None
    send_full: Callable[[bool], None] | None = None

    def unwatch(self) -> None:
        """Stop reporting cancellation and backlog to the process."""
        cancellation = self.request.cancellation
        if self.cancel is not None:
            cancellation.unwatch(self.cancel)
        if self.send_full is not None and cancellation.backlog is not None:
            cancellation.backlog.unwatch(self.send_full)


class InFlightRequests:
    """The unanswered requests by number, in the order of arrival. Thread-safe.

    Only the caller that takes a request out answers it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self._executing: dict[ChildProcess, range] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, child: ChildProcess, requests: Sequence[InferRequest]) -> range:
        """Add the requests of the batch that `child` executes next; return their numbers."""
        with self._lock:
            numbers = range(self._next, self._next + len(requests))
            self._next = numbers.stop
            self._executing[child] = numbers
            for number, request in zip(numbers, requests, strict=True):
                self._entries[number] = _Entry(request, child)
            return numbers

    def watch(self, numbers: range) -> None:
        """Report cancellation and backlog of these requests to the process.

        The process must have received the requests.
        """
        for number in numbers:
            # Without the lock, since `watch` calls back at once if a request is cancelled already.
            entry = self._entries.get(number)
            if entry is not None:
                entry.cancel = _cancel(entry.child, number)
                entry.request.cancellation.watch(entry.cancel)
                backlog = entry.request.cancellation.backlog
                if backlog is not None:
                    entry.send_full = partial(entry.child.connection.send, "full", number)
                    backlog.watch(entry.send_full)
                if number not in self._entries:  # answered in between
                    entry.unwatch()

    def get(self, number: int) -> InferRequest | None:
        """Return the request, or None if it has been answered."""
        entry = self._entries.get(number)
        return None if entry is None else entry.request

    def take(self, numbers: Iterable[int]) -> dict[int, InferRequest]:
        """Remove and return the unanswered requests among `numbers`."""
        with self._lock:
            found = {n: entry for n in numbers if (entry := self._entries.pop(n, None))}
        for entry in found.values():
            entry.unwatch()
        return {number: entry.request for number, entry in found.items()}

    def executed(self, child: ChildProcess) -> None:
        """Record that the batch of `child` has ended; unanswered requests are answered later."""
        with self._lock:
            self._executing.pop(child, None)

    def take_late(self, child: ChildProcess) -> dict[int, InferRequest]:
        """Remove and return the unanswered requests of ended batches of `child`."""
        with self._lock:
            # The thread that waits for the running batch fails its requests.
            executing = self._executing.get(child, ())
            late = [
                number
                for number, entry in self._entries.items()
                if entry.child is child and number not in executing
            ]
        return self.take(late)


def _cancel(child: ChildProcess, number: int) -> Callable[[], None]:
    return lambda: child.connection.send("cancel", number)
