"""Places for rows that stay on the device: which are free, and who may read the others how long.

Pure: a time goes in; locks, waits and memory are the caller's. A place is free, reserved by an
execution that has not ended, or held: then whoever has its key may read it, until it was read as
often as it is to be, is let go, or its time is over. That is shorter where places are short: nobody
tells of a request that has ended between its models. A place that is being read goes with the last
reader.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(slots=True)
class _Held:
    """A row that may be read."""

    key: bytes
    until: float
    spare: float
    """From when on it goes where places are short."""
    left: int
    """How often it is still to be read; 0: by nobody who does not already read it."""
    readers: int = 0


class RowPool:
    """The places of one tensor's rows. Not safe from several threads."""

    def __init__(
        self,
        rows: int,
        *,
        reads: int,
        lease_s: float,
        spare_s: float,
        new_key: Callable[[], bytes],
    ) -> None:
        """spare_s: after which a row that nobody reads makes room for others, if there is none.

        new_key: a key that nobody can guess, another one at each call.
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
        """Places that are not free."""
        return self.rows - len(self._free)

    @property
    def read_now(self) -> int:
        """Places that somebody reads."""
        return sum(held.readers > 0 for held in self._held.values())

    def reserve(self, count: int, now: float) -> list[int] | None:
        """So many places, ascending, for `publish` or `give_back`; None while there are too few."""
        if count > len(self._free):
            self._expire(now)
        if count > len(self._free):
            self._make_room(count - len(self._free), now)
        if count > len(self._free):
            return None
        places = [heappop(self._free) for _ in range(count)]
        self._reserved.update(places)
        return places

    def give_back(self, places: Sequence[int]) -> None:
        """Reserved places are not needed, after all."""
        for place in places:
            self._reserved.remove(place)
            heappush(self._free, place)

    def publish(self, places: Sequence[int], now: float) -> list[bytes]:
        """Reserved places have been written: the key of each."""
        keys = [self._new_key() for _ in places]
        for place, key in zip(places, keys, strict=True):
            self._reserved.remove(place)
            until, spare = now + self._lease_s, now + self._spare_s
            self._held[place] = _Held(key, until, spare, self._reads)
        return keys

    def begin_read(self, place: int, key: bytes, now: float) -> bool:
        """Whether the place may be read with this key; then `end_read` must follow."""
        held = self._held.get(place)
        # In the same time for every wrong key: none is found by parts.
        if held is None or not hmac.compare_digest(held.key, key):
            return False
        # Those who read it now count as if they had: a row is not read more often than it is to be.
        if held.until <= now or held.left <= held.readers:
            return False
        held.readers += 1
        return True

    def end_read(self, place: int, now: float, *, done: bool) -> None:
        """A reader has ended; done: it has what it wanted, and will not ask again."""
        held = self._held[place]
        held.readers -= 1
        held.left -= done
        self._go(place, held, now)

    def let_go(self, place: int, key: bytes, now: float) -> None:
        """Whoever has the key wants no more of it. Nothing happens with another key."""
        held = self._held.get(place)
        if held is not None and hmac.compare_digest(held.key, key):
            held.left = 0
            self._go(place, held, now)

    def next_end(self) -> float:
        """When the next place may go of which nobody has to tell; infinite if none does."""
        idle = (held.spare for held in self._held.values() if not held.readers)
        return min(idle, default=math.inf)

    def clear(self) -> None:
        """Nothing of it may be read any more; what is being read goes with its readers."""
        for place, held in list(self._held.items()):
            held.left = 0
            self._go(place, held, 0.0)

    def _expire(self, now: float) -> None:
        for place, held in list(self._held.items()):
            self._go(place, held, now)

    def _make_room(self, count: int, now: float) -> None:
        """Take so many places of those that were held longest, if there are as many to take."""
        own = [p for p, held in self._held.items() if not held.readers and held.spare <= now]
        if len(own) >= count:
            for place in own[:count]:
                self._held[place].left = 0
                self._go(place, self._held[place], now)

    def _go(self, place: int, held: _Held, now: float) -> None:
        """Free the place if nobody reads it and nobody is to."""
        if not held.readers and (held.left <= 0 or held.until <= now):
            del self._held[place]
            heappush(self._free, place)
