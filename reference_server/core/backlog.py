"""Responses that a client has not read: how many bytes may wait before models wait, too.

A model that answers more than once is faster than any client that does not read. Its responses are
kept up to a mark; beyond it the model's `send` waits until the client reads, leaves, or is sent
away. In between the event loop is never held up: threads of models add and wait, the loop takes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from reference_server.core.tensor import Tensor

#: Of responses: what no client reaches.
ANY_NUMBER = 2**31 - 1
#: Bytes that may wait for one client.
_MOST = 1 << 24
#: Bytes that may wait for all of them; beyond that few may wait for any.
_MOST_OF_ALL = 1 << 28
_FEW = 1 << 16
#: What a response costs beside its tensors' bytes, and a string beside its characters, about.
_RESPONSE_COST = 512
_STRING_COST = 64
#: Strings that are counted one by one; of more the first ones stand for all.
_COUNTED = 16


class Backlogs:
    """All backlogs of a server."""

    def __init__(self, most: int = _MOST, most_of_all: int = _MOST_OF_ALL, few: int = _FEW) -> None:
        self.most = most
        self._most_of_all = most_of_all
        self._few = few
        self.changed = threading.Condition()
        # What follows is of who holds `changed`.
        self.size = 0
        self._full: set[Backlog] = set()
        self._is_lifted = False

    def lift(self) -> None:
        """The server ends: nobody waits for clients any more."""
        with self.changed:
            self._is_lifted = True
            self.settle()

    def is_full(self, backlog: Backlog) -> bool:
        """Whether a backlog is full; with `changed` held."""
        if self._is_lifted:
            return False
        if backlog.responses >= backlog.most_responses:
            return True
        size = backlog.size
        return size > self.most or (size > self._few and self.size > self._most_of_all)

    @property
    def any_full(self) -> bool:
        """Whether somebody waits, or would; with `changed` held."""
        return bool(self._full)

    def settle(self, *moved: Backlog) -> None:
        """Tell who waits, after sizes have changed; with `changed` held."""
        for backlog in (*moved, *self._full):
            backlog.settle(is_full=self.is_full(backlog))
            if backlog.is_full:
                self._full.add(backlog)
            else:
                self._full.discard(backlog)


class Backlog:
    """What waits for one client: posted to the loop, or kept by its connection.

    It is full at so many bytes, or at `most_responses`. Each method says whose it is; nothing
    counts any more once it is closed.
    """

    __slots__ = (
        "_all",
        "_is_closed",
        "_kept",
        "_posted",
        "_unsent",
        "_watchers",
        "is_full",
        "most_responses",
        "size",
    )

    def __init__(self, backlogs: Backlogs, most_responses: int = ANY_NUMBER) -> None:
        self.most_responses = most_responses
        self._all = backlogs
        self._posted: deque[int] = deque()
        self._kept = 0
        self._unsent: deque[int] = deque()  # what is kept, by responses
        self._is_closed = False
        self._watchers: list[Callable[[bool], None]] = []
        self.size = 0
        self.is_full = False

    def __repr__(self) -> str:
        return f"<Backlog {self.size} bytes{', full' if self.is_full else ''}>"

    @property
    def responses(self) -> int:
        """How many wait, in whole or in part."""
        return len(self._posted) + len(self._unsent)

    # -- threads of models

    def wait(self) -> None:
        """Return when there is room for another response."""
        if self.is_full:
            with self._all.changed:
                self._all.changed.wait_for(lambda: not self.is_full)

    def add(self, outputs: Sequence[Tensor]) -> None:
        """A response with these outputs is posted to the loop."""
        size = _RESPONSE_COST + sum(map(_tensor_size, outputs))
        with self._all.changed:
            if not self._is_closed:
                self._posted.append(size)
                self._grow(size)

    def watch(self, watcher: Callable[[bool], None]) -> None:
        """Tell `watcher`, which must not block, when it is full, and when it no longer is."""
        with self._all.changed:
            self._watchers.append(watcher)
            if self.is_full:
                watcher(True)

    def unwatch(self, watcher: Callable[[bool], None]) -> None:
        """Tell it no more."""
        with self._all.changed:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def become(self, *, full: bool) -> None:
        """Be full, or not, as another process says whose backlog this stands for."""
        with self._all.changed:
            self.settle(is_full=full)

    # -- the loop

    def handled(self) -> None:
        """The oldest posted response has been given to the connection."""
        with self._all.changed:
            if self._posted:
                self._grow(-self._posted.popleft())

    def keep(self, size: int) -> None:
        """The connection has so many bytes now that the client has not taken."""
        if size != self._kept:
            with self._all.changed:
                if not self._is_closed:
                    more, self._kept = size - self._kept, size
                    if more > 0:
                        self._unsent.append(more)
                    else:
                        self._taken(-more)
                    self._grow(more)

    def close(self) -> None:
        """The client is gone, or has had its last response."""
        with self._all.changed:
            if not self._is_closed:
                self._is_closed = True
                self._posted.clear()
                self._unsent.clear()
                self._grow(-self.size)

    # -- with the lock held

    def _taken(self, size: int) -> None:
        """The client took so many bytes, of the oldest responses."""
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
        """Become full, or not; called by `Backlogs`."""
        if is_full is not self.is_full:
            self.is_full = is_full
            for watcher in self._watchers:
                watcher(is_full)
            if not is_full:
                self._all.changed.notify_all()


def _tensor_size(tensor: Tensor) -> int:
    """About how many bytes a tensor keeps."""
    if tensor.is_raw:
        return tensor.byte_size
    array = tensor.array()
    if not array.dtype.hasobject:
        return array.nbytes
    counted = array.flat[:_COUNTED].tolist()
    characters = sum(len(one) for one in counted if isinstance(one, (bytes, str)))
    return array.size * (_STRING_COST + characters // max(1, len(counted)))
