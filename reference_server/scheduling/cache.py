"""A scheduler in front of another: answers what the response cache knows, and fills it."""

from __future__ import annotations

import itertools
import logging

from reference_server.core.errors import Contained
from reference_server.core.metadata import Signature
from reference_server.core.ports import CacheRecorder, Clock, Scheduler
from reference_server.core.request import InferRequest, ResponseSink, answer
from reference_server.core.response import InferResponse
from reference_server.scheduling.execution import COUNTING
from reference_server.scheduling.response_store import NotStored, ResponseCache, key_of

log = logging.getLogger(__name__)

#: A response that cannot be kept is answered all the same.
_STORING = Contained("a response was not stored")

_loads = itertools.count()


class CachingScheduler:
    """Schedules the requests of one loaded model, or ensemble, through `cache`.

    A hit is answered within `submit`, on the caller's thread. Requests that are on their way at
    the same time are not merged: each misses. Error responses are not stored. What another load of
    the same model has answered is not found.
    """

    def __init__(
        self,
        inner: Scheduler,
        cache: ResponseCache,
        signature: Signature,
        version: int,
        recorder: CacheRecorder,
        clock: Clock,
    ) -> None:
        self._inner = inner
        self._name = signature.name
        self._version = version
        self._outputs = frozenset(output.name for output in signature.outputs)
        # A model that is loaded again may be another one.
        self._served = signature.name, version, next(_loads)
        self.cache = cache
        self.recorder = recorder
        self.clock = clock

    def __repr__(self) -> str:
        return f"CachingScheduler({self._inner!r})"

    @property
    def pending(self) -> int:
        """How many requests wait behind the cache."""
        return self._inner.pending

    def submit(self, request: InferRequest) -> None:
        """Answer `request` from the cache, or schedule it."""
        request.queued_ns = self.clock.monotonic_ns()
        began = self.clock.monotonic_ns()
        key = key_of(request, self._served, self._outputs)
        outputs = self.cache.lookup(key)
        now = self.clock.monotonic_ns()
        if outputs is not None:
            with COUNTING:
                self.recorder.cache_hit(request, began, now)
            answer(request, InferResponse(self._name, self._version, request.id, outputs))
            return
        front = request.sink
        request.sink = _StoringSink(self, key, front, now - began)
        try:
            self._inner.submit(request)
        except BaseException:
            request.sink = front
            raise

    def close(self) -> None:
        """Close what is behind the cache."""
        self._inner.close()


class _StoringSink:
    """Takes a response to the cache on its way."""

    __slots__ = ("_front", "_key", "_lookup_ns", "_scheduler")

    def __init__(
        self, scheduler: CachingScheduler, key: bytes, front: ResponseSink, lookup_ns: int
    ) -> None:
        self._scheduler = scheduler
        self._key = key
        self._front = front
        self._lookup_ns = lookup_ns

    def send(self, response: InferResponse) -> None:
        if response.error is None and not response.empty:
            with _STORING:
                self._store(response)
        self._front.send(response)

    def _store(self, response: InferResponse) -> None:
        scheduler = self._scheduler
        began = scheduler.clock.monotonic_ns()
        try:
            if not scheduler.cache.insert(self._key, response.outputs):
                return
        except NotStored as reason:
            log.error("Failed to insert key [%s] into response cache: %s", self._key.hex(), reason)
        scheduler.recorder.cache_missed(self._lookup_ns + scheduler.clock.monotonic_ns() - began)
