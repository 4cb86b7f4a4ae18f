"""The rows that stay on a service's device: handles to places, and places to handles.

A handle is four words: the service's own, the place, and a key of 128 random bits. It is made when
an execution has ended well, and is good for one tensor of one model. The next service has another
first word and no row, so that a handle never means other data than that it was made for.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.clock import Clock
from ge_runtime.config import HANDLE_DIMS, ResidentTensor
from ge_runtime.errors import HandleFault, HandleGone, RowsTaken
from ge_runtime.npu.service.row_pool import RowPool

MOST_WAIT_S: Final = 5.0
"""For places, where the request's own time limit is not shorter: readers are quicker than that."""

_WORDS: Final = HANDLE_DIMS[0]
_KEY_BYTES: Final = 16
_HALF: Final = 32
"""Bits of a place's number in its word, below those of its pool's."""

Handles = NDArray[np.uint64]
"""[rows, 4]"""


@dataclass(frozen=True, slots=True, eq=False)
class RowStore:
    """Memory on the device for the rows of one output of one model's instance."""

    number: int
    tensor: ResidentTensor
    pool: RowPool
    start: int
    """The address of the first place, a multiple of 64."""
    free: Callable[[], None]
    """Gives the memory back."""

    def addresses(self, places: Sequence[int]) -> list[int]:
        """Where places lie."""
        return [self.start + place * self.tensor.stride for place in places]


class Reading:
    """Rows that an execution reads, until `end`."""

    def __init__(self, registry: RowRegistry, rows: Sequence[tuple[RowStore, int]]) -> None:
        self._registry = registry
        self._rows = rows
        self.addresses = [address for store, place in rows for address in store.addresses([place])]

    def end(self, *, done: bool) -> None:
        """done: it has read them, and the rows may go. Once."""
        self._registry.end_read(self._rows, done=done)


class RowRegistry:
    """All rows that stay on the device of this service. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = Condition()  # guards the rest
        self._stores: dict[int, RowStore] = {}
        self._last = 0
        self._own = _word()

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
        """A store in memory that the caller has allocated."""
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
        """Give a store's memory back, when those that read it now have ended."""
        with self._changed:
            del self._stores[store.number]
            store.pool.clear()
            while store.pool.read_now:
                self._clock.wait(self._changed, math.inf)
        store.free()

    def reserve(self, store: RowStore, count: int, until: float) -> list[int]:
        """Places for so many rows. Raises RowsTaken if there are none until then."""
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
            f"expected {count} free ones: more requests are between the models than it has room for"
        )

    def give_back(self, store: RowStore, places: Sequence[int]) -> None:
        """Reserved places are not needed, after all."""
        with self._changed:
            store.pool.give_back(places)
            self._changed.notify_all()

    def publish(self, store: RowStore, places: Sequence[int]) -> Handles:
        """Rows have been written to reserved places: their handles."""
        with self._changed:
            keys = store.pool.publish(places, self._clock.now())
        handles = np.empty((len(places), _WORDS), np.uint64)
        handles[:, 0] = self._own
        handles[:, 1] = np.array(places, np.uint64) | np.uint64(store.number << _HALF)
        handles[:, 2:] = np.frombuffer(b"".join(keys), np.uint64).reshape(-1, 2)
        return handles

    def read(self, name: str, tensor: ResidentTensor, handles: Handles) -> Reading:
        """The rows that handles stand for, all of that tensor; `Reading.end` must follow.

        name: of the input. Raises HandleFault or HandleGone; then nothing is read.
        """
        rows: list[tuple[RowStore, int]] = []
        now = self._clock.now()
        with self._changed:
            try:
                for handle in handles:
                    row = self._begin(name, tensor, handle, now)
                    rows.append(row)  # one by one: what was begun before a wrong one is ended
            except HandleFault:
                self._end(rows, now, done=False)
                raise
        return Reading(self, rows)

    def end_read(self, rows: Sequence[tuple[RowStore, int]], *, done: bool) -> None:
        """See `Reading.end`."""
        with self._changed:
            self._end(rows, self._clock.now(), done=done)

    def let_go(self, handles: Handles) -> None:
        """Rows that nobody will read, as their request has failed. Others are left as they are."""
        now = self._clock.now()
        with self._changed:
            for handle in handles:
                found = self._find(handle)
                if found is not None:
                    store, place = found
                    store.pool.let_go(place, handle[2:].tobytes(), now)
            self._changed.notify_all()

    def _find(self, handle: Handles) -> tuple[RowStore, int] | None:
        """Where it leads, its key aside; None if nowhere."""
        own, where = int(handle[0]), int(handle[1])
        store = self._stores.get(where >> _HALF) if own == self._own else None
        return None if store is None else (store, where & ((1 << _HALF) - 1))

    def _begin(
        self, name: str, tensor: ResidentTensor, handle: Handles, now: float
    ) -> tuple[RowStore, int]:
        found = self._find(handle)
        if found is None or not found[0].pool.begin_read(found[1], handle[2:].tobytes(), now):
            raise HandleGone(
                f"input '{name}': found a handle of a row that is not on the device: it was read "
                "before, its request had failed, its time was over, it had to make room, its model "
                "was unloaded, the device service was started again, or no model gave it; expected "
                "the whole request again"
            )
        store, place = found
        if store.tensor != tensor:  # only whoever has the key is told what it is
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


def _word() -> int:
    """Random, and not 0: that is what rows of padding have."""
    return secrets.randbits(64) | 1
