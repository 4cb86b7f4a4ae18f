"""A response cache limited in bytes, and a scheduler that answers requests from it.

This scheduler passes requests that are not in the cache to another scheduler.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import lru_cache

from reference_server.core.errors import Contained
from reference_server.core.metadata import Signature
from reference_server.core.ports import CacheRecorder, Clock, Scheduler
from reference_server.core.request import InferRequest, InferResponse, ResponseSink, answer
from reference_server.core.telemetry import CacheReading
from reference_server.core.tensor import DataType, Shape, Tensor
from reference_server.scheduling.execution import COUNTING

#: The names, datatypes and shapes of a response's outputs.
Form = tuple[tuple[str, DataType | None, Shape], ...]
#: A stored response: the form, and the bytes of each output.
Stored = tuple[Form, tuple[bytes, ...]]

#: Bytes charged for each output in addition to its data. An entry with one output takes 390 bytes
#: more than its data (measured). If the charge were much larger, fewer responses would fit than in
#: Triton's cache.
OUTPUT_OVERHEAD_BYTES = 300
log = logging.getLogger(__name__)

#: If storing a response fails, the response must still be sent.
_STORING = Contained("a response was not stored")
_loads = itertools.count()


class NotStored(Exception):
    """The cache cannot hold a response; the text is Triton's reason."""


class LeastRecentlyUsed:
    """A mapping from keys to outputs that holds at most `byte_size` bytes. Not thread-safe.

    `used_bytes` never exceeds `byte_size`; `evictions` counts the entries removed to store other
    entries.
    """

    def __init__(self, byte_size: int) -> None:
        self.byte_size = byte_size
        self.used_bytes = 0
        self.evictions = 0
        self._entries: OrderedDict[Hashable, tuple[Stored, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable) -> Stored | None:
        """Return the outputs stored for `key`, and mark the entry as most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Hashable, outputs: Stored, byte_size: int) -> None:
        """Store `outputs`, charged with `byte_size`; evict the least recently used entries.

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


@lru_cache(256)
def _interned(form: Form) -> Form:
    """Return one object for equal forms: most responses of a model have the same form."""
    return form


def _bytes(tensor: Tensor) -> bytes:
    """Return the elements of an output; copies only if the output does not own immutable bytes."""
    data = tensor.frozen().raw().obj
    assert isinstance(data, bytes)
    return data


class ResponseCache:
    """The cache of one server, shared by all models that use it. Thread-safe.

    It stores the bytes of outputs. `lookup` returns tensors over these bytes, so a hit copies
    nothing.
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
        """Return the outputs stored for `key`; None if there are none."""
        start = self._clock.monotonic_ns()
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self._misses += 1
            else:
                self._hits += 1
            self._lookup_ns += self._clock.monotonic_ns() - start
        if found is None:
            return None
        return [
            Tensor(name, datatype, shape, raw=memoryview(data))
            for (name, datatype, shape), data in zip(*found, strict=True)
        ]

    def insert(self, key: Hashable, outputs: Sequence[Tensor]) -> bool:
        """Store copies of `outputs`. Return False if a response for `key` is stored already.

        Raises NotStored if the outputs do not fit or, as in Triton, if an output has no elements.
        """
        start = self._clock.monotonic_ns()
        # Checked before copying, and again below: another thread may have stored the response in
        # between.
        with self._lock:
            if key in self._entries:
                return False
        if any(0 in tensor.shape for tensor in outputs):
            raise NotStored("Response buffer from output was nullptr")
        form = _interned(tuple((each.name, each.datatype, each.shape) for each in outputs))
        stored = form, tuple(_bytes(each) for each in outputs)
        byte_size = sum(len(data) + OUTPUT_OVERHEAD_BYTES for data in stored[1])
        with self._lock:
            if key in self._entries:
                return False
            self._entries.put(key, stored, byte_size)
            self._insertion_ns += self._clock.monotonic_ns() - start
        return True

    def reading(self) -> CacheReading:
        """Return the current counters."""
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
    """Return the cache key of a request: a digest of model, inputs and requested outputs.

    The key depends on the names, datatypes, shapes and bytes of the inputs, but not on their order,
    nor on ids, parameters and priorities.

    Args:
        request: The request.
        served: Identifies the loaded model.
        outputs: The names of all outputs of the model.
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
    """A scheduler that looks up the requests of one loaded model or ensemble in `cache`.

    A hit is answered within `submit`, on the caller's thread. Equal requests in flight at the same
    time are not merged: each is a miss. Error responses are not stored. Responses stored before a
    reload of the model are not found.
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
        # A reloaded model may differ, so its keys differ too.
        self._served = signature.name, version, next(_loads)
        self.cache = cache
        self.recorder = recorder
        self.clock = clock

    def __repr__(self) -> str:
        return f"CachingScheduler({self.inner!r})"

    @property
    def pending(self) -> int:
        return self.inner.pending

    @property
    def in_flight(self) -> int:
        return self.inner.in_flight

    def refuse(self) -> None:
        """Refuse requests that miss the cache from now on."""
        self.inner.refuse()

    def submit(self, request: InferRequest) -> None:
        request.queued_ns = self.clock.monotonic_ns()
        start = self.clock.monotonic_ns()
        key = key_of(request, self._served, self._outputs)
        outputs = self.cache.lookup(key)
        now = self.clock.monotonic_ns()
        if outputs is not None:
            with COUNTING:
                self.recorder.cache_hit(request, start, now)
            answer(request, InferResponse(self._name, self._version, request.id, outputs))
            return
        sink = request.sink
        request.sink = _StoringSink(self, key, sink, now - start)
        try:
            self.inner.submit(request)
        except BaseException:
            # A refused request may be sent again, so it must be unchanged.
            request.sink = sink
            raise

    def close(self) -> None:
        self.inner.close()


class _StoringSink:
    """A sink that stores a response in the cache and forwards it."""

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
        start = scheduler.clock.monotonic_ns()
        try:
            if not scheduler.cache.insert(self._key, response.outputs):
                return
        except NotStored as reason:
            log.error("Failed to insert key [%s] into response cache: %s", self._key.hex(), reason)
        scheduler.recorder.cache_missed(self._lookup_ns + scheduler.clock.monotonic_ns() - start)
