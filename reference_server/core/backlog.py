"""Flow control: limits on the memory of unread responses, and of large requests.

A decoupled model can send responses faster than its client reads them. They are buffered up to a
limit. Beyond the limit, the model's `send` blocks until the client reads or the connection is
closed. Only threads of models block, never the event loop.

Large requests of all clients share a budget. A request is charged from its first byte until it is
freed. A request beyond the budget is refused. Small requests are not charged, so that large ones
cannot block them. Each connection has limits of its own in addition.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_server.core.errors import unavailable
from reference_server.core.tensor import Tensor

#: The value of `most_responses` that means no limit.
ANY_NUMBER = 2**31 - 1
#: The limit of unread bytes of one client.
_LIMIT = 1 << 24
#: The limit of unread bytes of all clients. Beyond it, each client's limit is `_REDUCED_LIMIT`.
_TOTAL_LIMIT = 1 << 28
_REDUCED_LIMIT = 1 << 16
#: The limit of unread responses of one client. Without it, 16 MiB of tiny responses keep the event
#: loop busy for seconds.
MOST_RESPONSES = 1 << 12
#: Estimated overhead in bytes of a response and of a string.
_RESPONSE_COST = 512
_STRING_COST = 64
#: The number of strings that are measured in an array. Their average is used for all strings.
_MEASURED = 16


class Backlogs:
    """The backlogs of all clients of a server.

    Args:
        limit: Unread bytes of one client.
        total_limit: Unread bytes of all clients.
        reduced_limit: Unread bytes of one client while `total_limit` is exceeded.
    """

    def __init__(
        self,
        limit: int = _LIMIT,
        total_limit: int = _TOTAL_LIMIT,
        reduced_limit: int = _REDUCED_LIMIT,
    ) -> None:
        self.limit = limit
        self._total_limit = total_limit
        self._reduced_limit = reduced_limit
        self.changed = threading.Condition()
        # Guarded by `changed`.
        self.size = 0
        self._full: set[Backlog] = set()
        self._is_lifted = False

    def lift(self) -> None:
        """Remove all limits, because the server stops. Blocked models continue."""
        with self.changed:
            self._is_lifted = True
            self.settle()

    def is_full(self, backlog: Backlog) -> bool:
        """Return True if `backlog` is full. The caller holds `changed`."""
        if self._is_lifted:
            return False
        if backlog.responses >= backlog.most_responses:
            return True
        size = backlog.size
        exceeds_total = self.size > self._total_limit
        return size > self.limit or (size > self._reduced_limit and exceeds_total)

    @property
    def any_full(self) -> bool:
        """True if at least one backlog is full. The caller holds `changed`."""
        return bool(self._full)

    def settle(self, *moved: Backlog) -> None:
        """Update the state of all full backlogs and of `moved`. The caller holds `changed`."""
        for backlog in (*moved, *self._full):
            backlog.settle(is_full=self.is_full(backlog))
            if backlog.is_full:
                self._full.add(backlog)
            else:
                self._full.discard(backlog)


class Backlog:
    """The unread responses of one client: posted to the event loop, or kept by the connection.

    It is full at a number of bytes (`Backlogs`), or at `most_responses` responses, which is at most
    `MOST_RESPONSES`. A closed backlog counts nothing (`is_closed`). Threads of models call the
    first group of methods, and the event loop calls the second group.
    """

    __slots__ = (
        "_all",
        "_kept",
        "_posted",
        "_unsent",
        "_watchers",
        "is_closed",
        "is_full",
        "most_responses",
        "size",
    )

    def __init__(self, backlogs: Backlogs, most_responses: int = ANY_NUMBER) -> None:
        self.most_responses = min(most_responses, MOST_RESPONSES)
        self._all = backlogs
        self._posted: deque[int] = deque()
        self._kept = 0
        self._unsent: deque[int] = deque()  # the kept bytes of each response
        self.is_closed = False
        self._watchers: list[Callable[[bool], None]] = []
        self.size = 0
        self.is_full = False

    def __repr__(self) -> str:
        return f"<Backlog {self.size} bytes{', full' if self.is_full else ''}>"

    @property
    def responses(self) -> int:
        """The number of responses that are not completely sent."""
        return len(self._posted) + len(self._unsent)

    # -- threads of models

    def wait(self) -> None:
        """Block until there is room for another response."""
        if self.is_full:
            with self._all.changed:
                self._all.changed.wait_for(lambda: not self.is_full)

    def add(self, outputs: Sequence[Tensor]) -> None:
        """Count a response with these outputs, which is posted to the event loop."""
        size = _RESPONSE_COST + sum(map(_tensor_size, outputs))
        with self._all.changed:
            if not self.is_closed:
                self._posted.append(size)
                self._grow(size)

    def watch(self, watcher: Callable[[bool], None]) -> None:
        """Call `watcher` with True when the backlog becomes full, with False when there is room.

        `watcher` must not block.
        """
        with self._all.changed:
            self._watchers.append(watcher)
            if self.is_full:
                watcher(True)

    def unwatch(self, watcher: Callable[[bool], None]) -> None:
        """Remove a watcher."""
        with self._all.changed:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def become(self, *, full: bool) -> None:
        """Set the state that another process reports, whose backlog this object represents."""
        with self._all.changed:
            self.settle(is_full=full)

    # -- the loop

    def handled(self) -> None:
        """Remove the oldest posted response, which the connection has received."""
        with self._all.changed:
            if self._posted:
                self._grow(-self._posted.popleft())

    def keep(self, size: int) -> None:
        """Set the number of bytes that the connection keeps until the client reads them."""
        if size != self._kept:
            with self._all.changed:
                if not self.is_closed:
                    more, self._kept = size - self._kept, size
                    if more > 0:
                        self._unsent.append(more)
                    else:
                        self._remove_read(-more)
                    self._grow(more)

    def close(self) -> None:
        """Stop counting: the client has disconnected or received its last response."""
        with self._all.changed:
            if not self.is_closed:
                self.is_closed = True
                self._posted.clear()
                self._unsent.clear()
                self._grow(-self.size)

    # -- with the lock held

    def _remove_read(self, size: int) -> None:
        """Remove `size` bytes, which the client has read, from the oldest responses."""
        while size >= self._unsent[0]:
            size -= self._unsent.popleft()
            if not size:
                return
        self._unsent[0] -= size

    def _grow(self, size: int) -> None:
        self.size += size
        self._all.size += size
        if self._all.any_full or self._all.is_full(self):
            self._all.settle(self)

    def settle(self, *, is_full: bool) -> None:
        """Set the state and report a change to the watchers. Called by `Backlogs`."""
        if is_full is not self.is_full:
            self.is_full = is_full
            for watcher in self._watchers:
                watcher(is_full)
            if not is_full:
                self._all.changed.notify_all()


def _tensor_size(tensor: Tensor) -> int:
    """Return the estimated number of bytes that a tensor occupies."""
    if tensor.is_raw:
        return tensor.byte_size
    array = tensor.array()
    if not array.dtype.hasobject:
        return array.nbytes
    measured = array.flat[:_MEASURED].tolist()
    characters = sum(len(one) for one in measured if isinstance(one, (bytes, str)))
    return array.size * (_STRING_COST + characters // max(1, len(measured)))


# -- the budget of large requests

#: Requests up to this size, in bytes, are not charged.
UNCOUNTED = 1 << 16
#: The memory limit of the container.
_CONTAINERS_LIMIT = Path("/sys/fs/cgroup/memory.max")


def half_of_memory() -> int:
    """Return half of the memory that this process may use, in bytes, rounded down to MiB."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no container, or no limit
        memory = min(memory, int(_CONTAINERS_LIMIT.read_text()))
    return memory // 2 >> 20 << 20


class Intake:
    """The budget of all large requests: `most` bytes; 0 is no limit. Thread-safe."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._held = 0
        # The sizes of freed requests, to be subtracted later: a request can be freed while this
        # thread holds the lock.
        self._freed: deque[int] = deque()

    @property
    def held(self) -> int:
        """The charged bytes."""
        with self._lock:
            return self._settled()

    def charge(self) -> Charge:
        """Return a charge of 0 bytes for a new request."""
        return Charge(self._add, self._freed.append)

    def keep(self, data: memoryview) -> memoryview:
        """Return `data`, charged until it is freed.

        Raises:
            ServerError: UNAVAILABLE; the budget is exceeded.
        """
        if len(data) <= UNCOUNTED:
            return data
        charge = self.charge()
        if not charge.grow(len(data)):
            raise unavailable(self.refusal(len(data)))
        return charge.hold(data)

    def _add(self, size: int) -> bool:
        with self._lock:
            if self.most and self._settled() + size > self.most:
                return False
            self._held += size
            return True

    def _settled(self) -> int:
        while self._freed:
            self._held -= self._freed.popleft()
        return self._held

    def refusal(self, length: int) -> str:
        """Return the error text for a request of `length` bytes beyond the budget."""
        return (
            f"request of {length} bytes rejected: the limit of {self.most} bytes for all large "
            "requests in flight is reached (--connection-memory-mib)"
        )


class _Held(np.ndarray[Any, Any]):
    """An array that keeps its charge alive as long as a view of it exists."""

    charge: Charge


class Charge:
    """The charged bytes of one request. They return to the budget when the object is freed."""

    __slots__ = ("_add", "_free", "_size")

    def __init__(self, add: Callable[[int], bool], free: Callable[[int], None]) -> None:
        self._add = add
        self._free = free
        self._size = 0

    def grow(self, size: int) -> bool:
        """Charge `size` more bytes; return False if the budget is exceeded."""
        if not self._add(size):
            return False
        self._size += size
        return True

    def hold(self, data: Any) -> memoryview:  # noqa: ANN401 - any buffer
        """Return a view of `data`; this charge is kept until all views are freed."""
        # Two views: NumPy sets the base of a view to the base array's base if that has the same
        # type. A single view over a plain array would therefore not be kept alive.
        held = np.frombuffer(data, np.uint8).view(_Held).view(_Held)
        held.charge = self
        return held.data

    def __del__(self) -> None:
        self._free(self._size)
