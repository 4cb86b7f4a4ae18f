"""Model instances that do what a test tells them, when it tells them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from server.support.requests import PATIENCE_S

from reference_server.core.request import InferRequest
from reference_server.core.response import Execution, InferResponse, Timing
from reference_server.scheduling.work import Batch, WorkQueue


class ScriptedInstance:
    """An instance whose executions end when the test says so.

    `began` is told the ids of each batch that begins. `threads` are those that opened, executed
    and closed the instance, in order, by what they did.
    """

    def __init__(
        self,
        name: str = "m_0",
        began: Callable[[list[str]], None] = lambda ids: None,
        *,
        opening: BaseException | None = None,
    ) -> None:
        self.name = name
        self.threads: list[tuple[str, threading.Thread]] = []
        self._began = began
        self._opening = opening
        self._outcomes: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def open(self) -> None:
        self._note("open")
        if self._opening is not None:
            raise self._opening

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        self._note("execute")
        self._began([request.id for request in requests])
        outcome = self._outcomes.get(timeout=PATIENCE_S)
        if outcome is not None:
            raise outcome
        return Execution([InferResponse("m", 1, request.id) for request in requests], 0, 0)

    def close(self) -> None:
        self._note("close")

    def _note(self, what: str) -> None:
        self.threads.append((what, threading.current_thread()))

    @property
    def done(self) -> list[str]:
        """What was done to the instance, in order."""
        return [what for what, _ in self.threads]

    def finish(self, outcome: BaseException | None = None) -> None:
        """Let one execution end, with an exception if there is one."""
        self._outcomes.put(outcome)


class WatchedQueue:
    """A WorkQueue that tells when an instance looked for work and found none.

    It then is idle before anybody else can submit: both happen under the scheduler's lock.
    """

    def __init__(self, work: WorkQueue) -> None:
        self._work = work
        self._owner = threading.current_thread()
        self._idle: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.offer = work.offer
        self.finished = work.finished
        self.refused = work.refused
        self.next_deadline_ns = work.next_deadline_ns
        self.flush = work.flush

    def __len__(self) -> int:
        return len(self._work)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        batch = self._work.take(instance, now_ns)
        if not batch and threading.current_thread() is not self._owner:
            self._idle.put(None)
        return batch

    def wait_for_idle(self, count: int = 1) -> None:
        """Wait until instances have found nothing to do, so many times."""
        for _ in range(count):
            self._idle.get(timeout=PATIENCE_S)


class NotedOutcomes:
    """A recorder that keeps the ids of batches, by what became of them."""

    TIMING = Timing(2, 3, 4)

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.broke: list[list[str]] = []

    def executed(
        self, batch: Sequence[InferRequest], execution: Execution, start_ns: int
    ) -> Timing:
        self.ran.append([request.id for request in batch])
        return self.TIMING

    def failed(self, batch: Sequence[InferRequest], start_ns: int) -> None:
        self.broke.append([request.id for request in batch])
