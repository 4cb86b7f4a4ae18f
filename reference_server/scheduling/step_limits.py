"""Limits on the in-flight requests of each step of an ensemble: `max_inflight_requests`.

As in newer releases of Triton, the limit applies to a step and is shared by all requests of the
ensemble. A waiting step blocks no thread: the thread that frees a place starts the next step.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Generic, Protocol, TypeVar

BranchT = TypeVar("BranchT", contravariant=True)


class Starter(Protocol[BranchT]):
    """The run of one ensemble request."""

    def start_held(self, branch: BranchT, index: int) -> None:
        """Start step `index`, which waited for a place, or release the place."""


class StepLimits(Generic[BranchT]):
    """Limits the in-flight requests of each step of one ensemble to `limit`. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._sent: Counter[int] = Counter()
        self._held: dict[int, deque[tuple[Starter[BranchT], BranchT]]] = {}
        self._freed: deque[tuple[Starter[BranchT], BranchT, int]] = deque()
        self._is_starting = False

    def may_start(self, starter: Starter[BranchT], branch: BranchT, index: int) -> bool:
        """Take a place of step `index`. Return False if the step must wait for a free place."""
        with self._lock:
            if self._sent[index] < self._limit:
                self._sent[index] += 1
                return True
            self._held.setdefault(index, deque()).append((starter, branch))
            return False

    def release(self, index: int) -> None:
        """Release the place of a step that has ended or was never sent.

        The caller calls `start_freed` afterwards.
        """
        with self._lock:
            held = self._held.get(index)
            if held:  # the first waiting step takes over the place
                self._freed.append((*held.popleft(), index))
            else:
                self._sent[index] -= 1

    def forget(self, starter: Starter[BranchT]) -> int:
        """Drop the waiting steps of `starter`. Return their number."""
        count = 0
        with self._lock:
            for index, held in self._held.items():
                kept = deque(each for each in held if each[0] is not starter)
                count += len(held) - len(kept)
                self._held[index] = kept
        return count

    def start_freed(self) -> None:
        """Start the waiting steps that have received a place. Sends requests, so hold no lock.

        Only one thread does this at a time, in a loop: a step that is answered immediately frees
        the place for the next one, and the calls would nest.
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
