"""The requests that an instance's process has been given, until each has had its last response."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reference_server.backends.process_host.process import ChildProcess
from reference_server.core.request import InferRequest


@dataclass(slots=True)
class _Entry:
    request: InferRequest
    child: ChildProcess
    cancel: Callable[[], None] | None = None


class InFlightRequests:
    """Requests by number, in the order in which they were given. Any thread.

    Whoever gets a request out of here answers it: nobody else does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self._executing: dict[ChildProcess, range] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, child: ChildProcess, requests: Sequence[InferRequest]) -> range:
        """Number the requests of the batch that `child` is to execute now."""
        with self._lock:
            numbers = range(self._next, self._next + len(requests))
            self._next = numbers.stop
            self._executing[child] = numbers
            for number, request in zip(numbers, requests, strict=True):
                self._entries[number] = _Entry(request, child)
            return numbers

    def watch(self, numbers: range) -> None:
        """From now on tell the process, which has these requests, if they are cancelled."""
        for number in numbers:
            # Not under the lock: of a request that is cancelled already `watch` calls at once.
            entry = self._entries.get(number)
            if entry is not None:
                entry.cancel = _cancel(entry.child, number)
                entry.request.cancellation.watch(entry.cancel)
                if number not in self._entries:  # answered meanwhile
                    entry.request.cancellation.unwatch(entry.cancel)

    def get(self, number: int) -> InferRequest | None:
        """The request, unless it has had its last response."""
        entry = self._entries.get(number)
        return None if entry is None else entry.request

    def take(self, numbers: Iterable[int]) -> dict[int, InferRequest]:
        """Those of these requests that have not had their last response: they get it now."""
        with self._lock:
            found = {n: entry for n in numbers if (entry := self._entries.pop(n, None))}
        for entry in found.values():
            if entry.cancel is not None:
                entry.request.cancellation.unwatch(entry.cancel)
        return {number: entry.request for number, entry in found.items()}

    def executed(self, child: ChildProcess) -> None:
        """Its batch is executed; those of the requests that are left are answered later."""
        with self._lock:
            self._executing.pop(child, None)

    def take_late(self, child: ChildProcess) -> dict[int, InferRequest]:
        """All that `child` was to answer later."""
        with self._lock:
            # What is executing has a thread of its own that waits for it, and fails it.
            executing = self._executing.get(child, ())
            late = [
                number
                for number, entry in self._entries.items()
                if entry.child is child and number not in executing
            ]
        return self.take(late)


def _cancel(child: ChildProcess, number: int) -> Callable[[], None]:
    return lambda: child.connection.send("cancel", number)
