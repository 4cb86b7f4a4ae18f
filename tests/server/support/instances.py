"""Model instances that do what a test tells them, when it tells them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from server.support.requests import PATIENCE_S

from reference_server.core.request import Execution, InferRequest, InferResponse, Timing
from reference_server.core.telemetry import FailureReason


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
        """The calls to the instance, in order."""
        return [what for what, _ in self.threads]

    def finish(self, outcome: BaseException | None = None) -> None:
        """Let one execution end, with an exception if there is one."""
        self._outcomes.put(outcome)


class Answering:
    """An instance that is always open and does what a function does."""

    name = "m_0"

    def __init__(self, execute: Callable[[Sequence[InferRequest]], Execution]) -> None:
        self.execute = execute


class NotedOutcomes:
    """A recorder that keeps the ids of batches, by what became of them."""

    TIMING = Timing(2, 3, 4)

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.broke: list[list[str]] = []
        self.refusals: list[tuple[str, FailureReason]] = []

    def executed(
        self, batch: Sequence[InferRequest], execution: Execution, start_ns: int
    ) -> Timing:
        self.ran.append([request.id for request in batch])
        return self.TIMING

    def failed(self, batch: Sequence[InferRequest], start_ns: int) -> None:
        self.broke.append([request.id for request in batch])

    def refused(self, request: InferRequest, reason: FailureReason) -> None:
        self.refusals.append((request.id, reason))
