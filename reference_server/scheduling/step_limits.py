"""How many requests of each step of an ensemble are on their way: `max_inflight_requests`.

As in newer releases the limit is for a step, and shared by all requests of the ensemble. What is
held back holds up no thread: who frees a place starts what waited for it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Generic, Protocol, TypeVar

BranchT = TypeVar("BranchT", contravariant=True)


class Starter(Protocol[BranchT]):
    """A request of the ensemble."""

    def start_held(self, branch: BranchT, index: int) -> None:
        """Start step `index`, which was held back, or let go of its place."""


class StepLimits(Generic[BranchT]):
    """The steps of one ensemble, by their numbers, `most` of each at a time. Any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._sent: Counter[int] = Counter()
        self._held: dict[int, deque[tuple[Starter[BranchT], BranchT]]] = {}
        self._freed: deque[tuple[Starter[BranchT], BranchT, int]] = deque()
        self._is_starting = False

    def may_start(self, starter: Starter[BranchT], branch: BranchT, index: int) -> bool:
        """Take a place of step `index`; if there is none, the step is held back until there is."""
        with self._lock:
            if self._sent[index] < self._most:
                self._sent[index] += 1
                return True
            self._held.setdefault(index, deque()).append((starter, branch))
            return False

    def let_go(self, index: int) -> None:
        """A step is at its end, or was never sent. To be followed by `start_freed`."""
        with self._lock:
            held = self._held.get(index)
            if held:  # which takes over the place
                self._freed.append((*held.popleft(), index))
            else:
                self._sent[index] -= 1

    def forget(self, starter: Starter[BranchT]) -> int:
        """Start none of the steps that are held back for `starter`; returns how many those were."""
        count = 0
        with self._lock:
            for index, held in self._held.items():
                kept = deque(each for each in held if each[0] is not starter)
                count += len(held) - len(kept)
                self._held[index] = kept
        return count

    def start_freed(self) -> None:
        """Start what places were freed for. Under no lock: it sends requests.

        One thread at a time, and one after the other: a step that is answered at once frees the
        place for the next, and these would nest.
        """
        while True:
            with self._lock:
                if self._is_starting or not self._freed:
                    return
                self._is_starting = True
                starter, branch, index = self._freed.popleft()
            try:
                starter.start_held(branch, index)
            finally:
                with self._lock:
                    self._is_starting = False
