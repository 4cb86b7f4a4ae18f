"""The rows that stay on a service's device, and their handles.

A handle has four words: the service's random word, the place, and two words with a key of 128
random bits. A handle is created when an execution has succeeded, and is valid for one tensor of one
model. A new service has another first word and no rows, so a handle never refers to other data.

`RowPool` manages the places of one tensor. A place is free, reserved by an execution, or holds a
row. A held row may be read with its key until it was read a given number of times, is released, or
its lease has expired. If places are short, rows that are not being read can be evicted earlier,
because the service is not notified of requests that end between models. A row that is being read is
freed when its last reader has ended.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from threading import Condition
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.clock import Clock
from ge_runtime.config import HANDLE_DIMS, ResidentTensor
from ge_runtime.errors import HandleFault, HandleGone, RowsTaken

MOST_WAIT_S: Final = 5.0
"""Maximum time to wait for free places, unless the deadline is earlier. Reads take less time."""

_WORDS: Final = HANDLE_DIMS[0]
_KEY_BYTES: Final = 16
_HALF: Final = 32
"""Number of bits for the place in its word; the higher bits are the number of the store."""

Handles = NDArray[np.uint64]
"""[rows, 4]"""


@dataclass(frozen=True, slots=True, eq=False)
class RowStore:
    """Device memory for the rows of one output of one model instance."""

    number: int
    tensor: ResidentTensor
    pool: RowPool
    start: int
    """The address of the first place, a multiple of 64."""
    free: Callable[[], None]
    """Frees the memory."""

    def addresses(self, places: Sequence[int]) -> list[int]:
        """Return the addresses of places."""
        return [self.start + place * self.tensor.stride for place in places]


class Reading:
    """The rows that an execution reads, until `end`."""

    def __init__(self, registry: RowRegistry, rows: Sequence[tuple[RowStore, int]]) -> None:
        self._registry = registry
        self._rows = rows
        self.addresses = [address for store, place in rows for address in store.addresses([place])]

    def end(self, *, done: bool) -> None:
        """End the reads, which are counted if `done`. Call once."""
        self._registry.end_read(self._rows, done=done)


class RowRegistry:
    """All rows that stay on the device of this service. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = Condition()  # guards the attributes below
        self._stores: dict[int, RowStore] = {}
        self._last = 0
        self._own = _random_word()

    def add(
        self,
        tensor: ResidentTensor,
        rows: int,
        *,
        reads: int,
        lease_s: float,
        spare_s: float,
        start: int,
        free: Callable[[], None],
    ) -> RowStore:
        """Add a store in memory that the caller has allocated.

        Args:
            tensor: The tensor.
            rows: Number of places.
            reads: Number of times that a row may be read.
            lease_s: Time after which a row expires.
            spare_s: Time after which a row may be evicted if places are short.
            start: Address of the memory.
            free: Frees the memory.
        """
        pool = RowPool(
            rows,
            reads=reads,
            lease_s=lease_s,
            spare_s=spare_s,
            new_key=lambda: secrets.token_bytes(_KEY_BYTES),
        )
        with self._changed:
            self._last += 1
            store = RowStore(self._last, tensor, pool, start, free)
            self._stores[store.number] = store
        return store

    def remove(self, store: RowStore) -> None:
        """Free a store, after its current readers have ended."""
        with self._changed:
            del self._stores[store.number]
            store.pool.clear()
            while store.pool.read_now:
                self._clock.wait(self._changed, math.inf)
        store.free()

    def reserve(self, store: RowStore, count: int, until: float) -> list[int]:
        """Reserve places, and wait for them. Raises RowsTaken if there are too few at `until`."""
        with self._changed:
            while True:
                now = self._clock.now()
                places = store.pool.reserve(count, now)
                if places is not None:
                    return places
                if now >= until or count > store.pool.rows:
                    break
                self._clock.wait(self._changed, min(until, store.pool.next_end()))
            taken = store.pool.taken
        raise RowsTaken(
            f"resident_rows: found {taken} of {store.pool.rows} places of {store.tensor} taken, "
            f"expected {count} free ones: too many requests are between the models"
        )

    def unreserve(self, store: RowStore, places: Sequence[int]) -> None:
        """Free reserved places that were not written."""
        with self._changed:
            store.pool.unreserve(places)
            self._changed.notify_all()

    def publish(self, store: RowStore, places: Sequence[int]) -> Handles:
        """Return handles for reserved places, to which rows have been written."""
        with self._changed:
            keys = store.pool.publish(places, self._clock.now())
        handles = np.empty((len(places), _WORDS), np.uint64)
        handles[:, 0] = self._own
        handles[:, 1] = np.array(places, np.uint64) | np.uint64(store.number << _HALF)
        handles[:, 2:] = np.frombuffer(b"".join(keys), np.uint64).reshape(-1, 2)
        return handles

    def read(self, name: str, tensor: ResidentTensor, handles: Handles) -> Reading:
        """Begin to read the rows of handles.

        Args:
            name: Name of the input, for errors.
            tensor: The tensor that all handles must belong to.
            handles: [rows, 4].

        Returns:
            The reading, whose `end` must be called.

        Raises:
            HandleFault: A handle belongs to another tensor.
            HandleGone: A row does not exist any more.
        """
        rows: list[tuple[RowStore, int]] = []
        now = self._clock.now()
        with self._changed:
            try:
                for handle in handles:
                    row = self._begin(name, tensor, handle, now)
                    rows.append(row)  # one by one, so that an error ends the reads of earlier rows
            except HandleFault:
                self._end(rows, now, done=False)
                raise
        return Reading(self, rows)

    def end_read(self, rows: Sequence[tuple[RowStore, int]], *, done: bool) -> None:
        """See `Reading.end`."""
        with self._changed:
            self._end(rows, self._clock.now(), done=done)

    def release(self, handles: Handles) -> None:
        """Free the rows of a failed request; invalid handles are ignored."""
        now = self._clock.now()
        with self._changed:
            for handle in handles:
                found = self._find(handle)
                if found is not None:
                    store, place = found
                    store.pool.release(place, handle[2:].tobytes(), now)
            self._changed.notify_all()

    def _find(self, handle: Handles) -> tuple[RowStore, int] | None:
        """Return the place of a handle without checking its key; None if there is no store."""
        own, where = int(handle[0]), int(handle[1])
        store = self._stores.get(where >> _HALF) if own == self._own else None
        return None if store is None else (store, where & ((1 << _HALF) - 1))

    def _begin(
        self, name: str, tensor: ResidentTensor, handle: Handles, now: float
    ) -> tuple[RowStore, int]:
        found = self._find(handle)
        if found is None or not found[0].pool.begin_read(found[1], handle[2:].tobytes(), now):
            raise HandleGone(
                f"input '{name}': found a handle of a row that is not on the device: the row was "
                "already read, its request failed, it expired or was evicted, its model was "
                "unloaded, the device service was restarted, or the handle is invalid; expected "
                "the whole request again"
            )
        store, place = found
        if store.tensor != tensor:  # only a client with the key receives the tensor's name
            store.pool.end_read(place, now, done=False)
            raise HandleFault(
                f"input '{name}': found a handle of {store.tensor}, expected {tensor}"
            )
        return store, place

    def _end(self, rows: Sequence[tuple[RowStore, int]], now: float, *, done: bool) -> None:
        for store, place in rows:
            store.pool.end_read(place, now, done=done)
        if rows:
            self._changed.notify_all()


def _random_word() -> int:
    """Return a random word other than 0. The words of padding rows are 0."""
    return secrets.randbits(64) | 1


@dataclass(slots=True)
class _Held:
    """A row that may be read."""

    key: bytes
    until: float
    """Time at which the row expires."""
    spare: float
    """Time after which the row may be evicted."""
    reads_left: int
    """Number of times that the row may still be read, including current readers."""
    readers: int = 0


class RowPool:
    """The places of one tensor's rows. Not thread-safe."""

    def __init__(
        self, rows: int, *, reads: int, lease_s: float, spare_s: float, new_key: Callable[[], bytes]
    ) -> None:
        """Initialize a pool of free places.

        Args:
            rows: Number of places.
            reads: Number of times that a row may be read.
            lease_s: Time after which a row expires.
            spare_s: Time after which an unread row may be evicted if places are short.
            new_key: Returns a new key that cannot be guessed.
        """
        self._free = list(range(rows))
        self._reserved: set[int] = set()
        self._held: dict[int, _Held] = {}  # the oldest first
        self._reads = reads
        self._lease_s = lease_s
        self._spare_s = min(spare_s, lease_s)
        self._new_key = new_key
        self.rows = rows

    @property
    def taken(self) -> int:
        """The number of places that are not free."""
        return self.rows - len(self._free)

    @property
    def read_now(self) -> int:
        """The number of places that are being read."""
        return sum(held.readers > 0 for held in self._held.values())

    def reserve(self, count: int, now: float) -> list[int] | None:
        """Reserve places, for `publish` or `unreserve`; None if there are too few.

        The places are in ascending order.
        """
        if count > len(self._free):
            self._expire(now)
        if count > len(self._free):
            self._evict(count - len(self._free), now)
        if count > len(self._free):
            return None
        places = [heappop(self._free) for _ in range(count)]
        self._reserved.update(places)
        return places

    def unreserve(self, places: Sequence[int]) -> None:
        """Free reserved places."""
        for place in places:
            self._reserved.remove(place)
            heappush(self._free, place)

    def publish(self, places: Sequence[int], now: float) -> list[bytes]:
        """Hold the written rows in reserved places, and return the key of each."""
        keys = [self._new_key() for _ in places]
        for place, key in zip(places, keys, strict=True):
            self._reserved.remove(place)
            until, spare = now + self._lease_s, now + self._spare_s
            self._held[place] = _Held(key, until, spare, self._reads)
        return keys

    def begin_read(self, place: int, key: bytes, now: float) -> bool:
        """Begin to read a place with its key. If the result is True, call `end_read` later."""
        held = self._held.get(place)
        # The comparison takes constant time, so that a key cannot be guessed byte by byte.
        if held is None or not hmac.compare_digest(held.key, key):
            return False
        # Current readers count, so that a row is not read too often.
        if held.until <= now or held.reads_left <= held.readers:
            return False
        held.readers += 1
        return True

    def end_read(self, place: int, now: float, *, done: bool) -> None:
        """End a read, which is counted if `done`."""
        held = self._held[place]
        held.readers -= 1
        held.reads_left -= done
        self._free_if_unused(place, held, now)

    def release(self, place: int, key: bytes, now: float) -> None:
        """Free a place, after its current readers have ended; no-op with a wrong key."""
        held = self._held.get(place)
        if held is not None and hmac.compare_digest(held.key, key):
            held.reads_left = 0
            self._free_if_unused(place, held, now)

    def next_end(self) -> float:
        """Return the next time at which a row may be evicted; infinite if all are being read."""
        idle = (held.spare for held in self._held.values() if not held.readers)
        return min(idle, default=math.inf)

    def clear(self) -> None:
        """Free all places, after their current readers have ended."""
        for place, held in list(self._held.items()):
            held.reads_left = 0
            self._free_if_unused(place, held, 0.0)

    def _expire(self, now: float) -> None:
        for place, held in list(self._held.items()):
            self._free_if_unused(place, held, now)

    def _evict(self, count: int, now: float) -> None:
        """Evict `count` rows, the oldest first. If fewer may be evicted, evict none."""
        idle = [p for p, held in self._held.items() if not held.readers and held.spare <= now]
        if len(idle) >= count:
            for place in idle[:count]:
                self._held[place].reads_left = 0
                self._free_if_unused(place, self._held[place], now)

    def _free_if_unused(self, place: int, held: _Held, now: float) -> None:
        """Free the place if it is not being read, and may not be read any more."""
        if not held.readers and (held.reads_left <= 0 or held.until <= now):
            del self._held[place]
            heappush(self._free, place)
