"""The response cache, bounded in bytes, and the scheduler in front of others that uses it."""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from reference_server.core.errors import Contained
from reference_server.core.metadata import Signature
from reference_server.core.ports import CacheRecorder, Clock, Scheduler
from reference_server.core.request import InferRequest, InferResponse, ResponseSink, answer
from reference_server.core.telemetry import CacheReading
from reference_server.core.tensor import Tensor
from reference_server.scheduling.execution import COUNTING

Outputs = tuple[Tensor, ...]

#: What an output is charged beside its bytes: its name, type and shape, and its share of the entry.
OUTPUT_OVERHEAD_BYTES = 64
log = logging.getLogger(__name__)

#: A response that cannot be kept is answered all the same.
_STORING = Contained("a response was not stored")
_loads = itertools.count()


class NotStored(Exception):
    """A response that the cache cannot hold; the text says why, in Triton's words."""


class LeastRecentlyUsed:
    """Outputs by key, in at most `byte_size` bytes. Not thread-safe, no clock.

    `used_bytes` never exceeds `byte_size`; `evictions` counts the entries that made room for
    others.
    """

    def __init__(self, byte_size: int) -> None:
        self.byte_size = byte_size
        self.used_bytes = 0
        self.evictions = 0
        self._entries: OrderedDict[Hashable, tuple[Outputs, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable) -> Outputs | None:
        """What is stored for `key`, which is now the entry used last."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Hashable, outputs: Outputs, byte_size: int) -> None:
        """Store `outputs`, which count with `byte_size`, in the place of the oldest entries.

        `key` must not be stored already. Raises NotStored if the whole cache is too small.
        """
        if byte_size > self.byte_size:
            raise NotStored(
                f"Requested byte_size: {byte_size} is greater than total cache size: "
                f"{self.byte_size}"
            )
        while self.used_bytes + byte_size > self.byte_size:
            _, (_, freed) = self._entries.popitem(last=False)
            self.used_bytes -= freed
            self.evictions += 1
        self._entries[key] = outputs, byte_size
        self.used_bytes += byte_size


class ResponseCache:
    """The cache of one server, shared by all models that use it. Any thread.

    What is stored are copies of its own that nobody can write to; `lookup` gives tensors over
    these bytes, so a hit copies nothing.
    """

    def __init__(self, byte_size: int, clock: Clock) -> None:
        self._entries = LeastRecentlyUsed(byte_size)
        self._clock = clock
        self._lock = threading.Lock()
        self._hits = self._misses = 0
        self._lookup_ns = self._insertion_ns = 0

    def __repr__(self) -> str:
        entries = self._entries
        return (
            f"ResponseCache({len(entries)} entries, {entries.used_bytes} of "
            f"{entries.byte_size} bytes)"
        )

    def lookup(self, key: Hashable) -> list[Tensor] | None:
        """The outputs that were stored for `key`; None if there are none."""
        start = self._clock.monotonic_ns()
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self._misses += 1
            else:
                self._hits += 1
            self._lookup_ns += self._clock.monotonic_ns() - start
        # Objects of their own: a tensor keeps the array that somebody made of it, and changed.
        return None if found is None else [tensor.renamed(tensor.name) for tensor in found]

    def insert(self, key: Hashable, outputs: Sequence[Tensor]) -> bool:
        """Store copies of `outputs`; False if somebody else has stored a response for `key`.

        Raises NotStored if they do not fit, or if one has no elements, as in Triton.
        """
        start = self._clock.monotonic_ns()
        # Looked at before anything is copied; and again below, for another may have stored it.
        with self._lock:
            if key in self._entries:
                return False
        if any(0 in tensor.shape for tensor in outputs):
            raise NotStored("Response buffer from output was nullptr")
        frozen = tuple(tensor.frozen() for tensor in outputs)
        byte_size = sum(tensor.byte_size + OUTPUT_OVERHEAD_BYTES for tensor in frozen)
        with self._lock:
            if key in self._entries:
                return False
            self._entries.put(key, frozen, byte_size)
            self._insertion_ns += self._clock.monotonic_ns() - start
        return True

    def reading(self) -> CacheReading:
        """The counters as they are now."""
        with self._lock:
            entries = self._entries
            return CacheReading(
                entries.used_bytes / entries.byte_size,
                len(entries),
                self._hits,
                self._misses,
                entries.evictions,
                self._lookup_ns,
                self._insertion_ns,
            )


def key_of(request: InferRequest, served: Hashable, outputs: frozenset[str]) -> bytes:
    """What makes requests equal: the model, its inputs, and the outputs they want.

    `served` names the loaded model, `outputs` are all that it has. Inputs count with their names,
    datatypes, shapes and bytes, in any order; ids, parameters and priorities do not count.
    """
    wanted = outputs.intersection(request.requested_outputs) or outputs
    digest = hashlib.blake2b(repr((served, sorted(wanted))).encode(), digest_size=16)
    for name in sorted(request.inputs):
        tensor = request.inputs[name]
        raw = tensor.raw()
        digest.update(repr((name, tensor.datatype, tensor.shape, len(raw))).encode())
        digest.update(raw)
    return digest.digest()


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
        self.inner = inner
        self._name = signature.name
        self._version = version
        self._outputs = frozenset(output.name for output in signature.outputs)
        # A model that is loaded again may be another one.
        self._served = signature.name, version, next(_loads)
        self.cache = cache
        self.recorder = recorder
        self.clock = clock

    def __repr__(self) -> str:
        return f"CachingScheduler({self.inner!r})"

    @property
    def pending(self) -> int:
        """How many requests wait behind the cache."""
        return self.inner.pending

    @property
    def in_flight(self) -> int:
        """How many requests are behind the cache."""
        return self.inner.in_flight

    def refuse(self) -> None:
        """Refuse what the cache has no answer for."""
        self.inner.refuse()

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
        sink = request.sink
        request.sink = _StoringSink(self, key, sink, now - began)
        try:
            self.inner.submit(request)
        except BaseException:
            # It is refused, and whoever sends it again finds it as it was.
            request.sink = sink
            raise

    def close(self) -> None:
        """Close what is behind the cache."""
        self.inner.close()


class _StoringSink:
    """Takes a response to the cache on its way."""

    __slots__ = ("_key", "_lookup_ns", "_scheduler", "_sink")

    def __init__(
        self, scheduler: CachingScheduler, key: bytes, sink: ResponseSink, lookup_ns: int
    ) -> None:
        self._scheduler = scheduler
        self._key = key
        self._sink = sink
        self._lookup_ns = lookup_ns

    def send(self, response: InferResponse) -> None:
        if response.error is None and not response.empty:
            with _STORING:
                self._store(response)
        self._sink.send(response)

    def _store(self, response: InferResponse) -> None:
        scheduler = self._scheduler
        began = scheduler.clock.monotonic_ns()
        try:
            if not scheduler.cache.insert(self._key, response.outputs):
                return
        except NotStored as reason:
            log.error("Failed to insert key [%s] into response cache: %s", self._key.hex(), reason)
        scheduler.recorder.cache_missed(self._lookup_ns + scheduler.clock.monotonic_ns() - began)
