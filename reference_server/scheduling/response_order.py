"""Responses in the order of their requests (`preserve_ordering`), whichever instance is first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence

from reference_server.core.request import InferRequest, InferResponse, ResponseSink, deliver
from reference_server.scheduling.work_queue import Batch, Refusal, WorkQueue


class ResponseOrder:
    """Hands on the responses of one request after the other. Any thread.

    The first of the requests that are not answered yet has its responses handed on as they come;
    those of the others are kept until all before them have had their last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: deque[_OrderedSink] = deque()
        self._is_handing_on = False

    def place(self, sink: ResponseSink) -> ResponseSink:
        """A sink for the next request, in front of its own."""
        place = _OrderedSink(self, sink)
        with self._lock:
            self._places.append(place)
        return place

    def came(self, place: _OrderedSink, response: InferResponse) -> None:
        """A request has a response. Whoever brings one first hands on for all others, too."""
        with self._lock:
            place.kept.append(response)
            if self._is_handing_on:
                return
            self._is_handing_on = True
        while ready := self._next():
            place, response = ready
            deliver(place.sink, response)

    def _next(self) -> tuple[_OrderedSink, InferResponse] | None:
        with self._lock:
            if not self._places or not self._places[0].kept:
                self._is_handing_on = False
                return None
            first = self._places[0]
            response = first.kept.popleft()
            if response.final:
                self._places.popleft()
            return first, response


class _OrderedSink:
    """Stands for one request in the order."""

    __slots__ = ("_order", "kept", "sink")

    def __init__(self, order: ResponseOrder, sink: ResponseSink) -> None:
        self._order = order
        self.sink = sink
        self.kept: deque[InferResponse] = deque()

    def send(self, response: InferResponse) -> None:
        self._order.came(self, response)


class OrderedQueue:
    """A WorkQueue whose requests are answered in the order in which they leave it."""

    def __init__(self, work: WorkQueue) -> None:
        self._work = work
        self._order = ResponseOrder()
        self.takes_all = work.takes_all

    def __len__(self) -> int:
        return len(self._work)

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a request. Raises ServerError if it is refused at once."""
        self._work.offer(request, now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """What that instance shall run now, each request with its place in the order."""
        batch = self._work.take(instance, now_ns)
        for request in batch or ():
            request.sink = self._order.place(request.sink)
        return batch

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """`instance` has executed `batch`."""
        self._work.finished(instance, batch, again, now_ns)

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Those given up; they never had a place."""
        return self._work.refused(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When to ask again though nothing else has happened."""
        return self._work.next_deadline_ns()

    def flush(self) -> None:
        """From now on give whatever waits."""
        self._work.flush()

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Instances come, and others leave."""
        self._work.resize(added, leaving, now_ns)

    def keeps(self, instance: int) -> bool:
        """Whether an instance that is to leave is needed yet."""
        return self._work.keeps(instance)
