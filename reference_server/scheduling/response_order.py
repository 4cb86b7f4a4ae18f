"""Sends responses in the order of their requests (`preserve_ordering`), across instances."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence

from reference_server.core.request import InferRequest, InferResponse, ResponseSink, deliver
from reference_server.scheduling.work_queue import Batch, Refusal, WorkQueue


class ResponseOrder:
    """Forwards the responses of one request after the other. Thread-safe.

    Responses of the oldest unanswered request are forwarded immediately. Responses of later
    requests are buffered until all earlier requests have sent their final response.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: deque[_OrderedSink] = deque()
        self._is_sending = False

    def append(self, sink: ResponseSink) -> ResponseSink:
        """Return a sink for the next request; it wraps the request's own sink."""
        ordered = _OrderedSink(self, sink)
        with self._lock:
            self._sinks.append(ordered)
        return ordered

    def send(self, ordered: _OrderedSink, response: InferResponse) -> None:
        """Buffer the response of one request, and forward all responses that are due.

        One thread at a time forwards, including the responses of other threads.
        """
        with self._lock:
            ordered.buffer.append(response)
            if self._is_sending:
                return
            self._is_sending = True
        while due := self._next():
            ordered, response = due
            deliver(ordered.sink, response)

    def _next(self) -> tuple[_OrderedSink, InferResponse] | None:
        with self._lock:
            if not self._sinks or not self._sinks[0].buffer:
                self._is_sending = False
                return None
            first = self._sinks[0]
            response = first.buffer.popleft()
            if response.final:
                self._sinks.popleft()
            return first, response


class _OrderedSink:
    """The sink of one request, with the responses that are not forwarded yet."""

    __slots__ = ("_order", "buffer", "sink")

    def __init__(self, order: ResponseOrder, sink: ResponseSink) -> None:
        self._order = order
        self.sink = sink
        self.buffer: deque[InferResponse] = deque()

    def send(self, response: InferResponse) -> None:
        self._order.send(self, response)


class OrderedQueue:
    """A WorkQueue whose requests are answered in the order in which `take` returns them."""

    def __init__(self, work: WorkQueue) -> None:
        self._work = work
        self._order = ResponseOrder()
        self.takes_all = work.takes_all

    def __len__(self) -> int:
        return len(self._work)

    def offer(self, request: InferRequest, now_ns: int) -> None:
        self._work.offer(request, now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """Return the next batch of the inner queue, with a place in the order for each request."""
        batch = self._work.take(instance, now_ns)
        for request in batch or ():
            request.sink = self._order.append(request.sink)
        return batch

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        self._work.finished(instance, batch, again, now_ns)

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Return the refused requests; they have no place in the order."""
        return self._work.refused(now_ns)

    def next_deadline_ns(self) -> int | None:
        return self._work.next_deadline_ns()

    def flush(self) -> None:
        self._work.flush()

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        self._work.resize(added, leaving, now_ns)

    def keeps(self, instance: int) -> bool:
        return self._work.keeps(instance)
