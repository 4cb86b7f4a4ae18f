"""The dispatcher: each execution goes to the executor with the fewest rows before it.

An executor is one engine on one device, running one execution at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

Executor = TypeVar("Executor")


class LeastRows:
    """The choice itself: pure, and fair among equals."""

    def __init__(self, executors: int) -> None:
        self._outstanding = [0] * executors
        self._taken = [0] * executors

    @property
    def outstanding(self) -> tuple[int, ...]:
        """The rows that each executor has been given and not finished."""
        return tuple(self._outstanding)

    def take(self, rows: int, lost: Collection[int] = ()) -> int:
        """The one with the least outstanding rows, and of these the least used; now with more.

        lost: executors to take only if there are no others. They finish at once and so would get
        most.
        """
        index = min(
            range(len(self._outstanding)),
            key=lambda i: (i in lost, self._outstanding[i], self._taken[i], i),
        )
        self._outstanding[index] += rows
        self._taken[index] += 1
        return index

    def give_back(self, index: int, rows: int) -> None:
        """The executor has finished these rows."""
        self._outstanding[index] -= rows


class Dispatcher(Generic[Executor]):
    """Runs tasks on executors, each executor's tasks in order and one at a time.

    One executor is used on the caller's own thread: no hand-over, and none of its cost. Of several,
    each has a thread. Safe from any thread.
    """

    def __init__(
        self,
        executors: Sequence[Executor],
        name: str,
        lost: Callable[[Executor], bool] = lambda executor: False,
    ) -> None:
        """name: of threads, for people. lost: whether an executor can execute nothing any more."""
        self._executors = tuple(executors)
        self._lost = lost
        self._choice = LeastRows(len(executors))
        self._lock = Lock()
        self._threads = (
            [ThreadPoolExecutor(1, f"{name}-executor-{index}") for index in range(len(executors))]
            if len(executors) > 1
            else []
        )

    @property
    def outstanding(self) -> tuple[int, ...]:
        """The rows that each of several executors has been given and not finished."""
        with self._lock:
            return self._choice.outstanding

    def run_all(self, tasks: Sequence[tuple[int, Callable[[Executor], None]]]) -> None:
        """Run all tasks, each its rows and what to do on an executor; returns when all are done.

        Raises what a task raised, the first of them, after all are done.
        """
        if not self._threads:
            # The lock is held for the whole batch: an executor is for one thread at a time.
            with self._lock:
                for _, task in tasks:
                    task(self._executors[0])
            return
        futures = [self._submit(rows, task) for rows, task in tasks]
        # `exception` waits for its task: all are done before anything is raised.
        raised = [error for future in futures if (error := future.exception()) is not None]
        if raised:
            raise raised[0]

    def _submit(self, rows: int, task: Callable[[Executor], None]) -> Future[None]:
        with self._lock:
            lost = [index for index, executor in enumerate(self._executors) if self._lost(executor)]
            chosen = self._choice.take(rows, lost)
            # Under the lock, so that each thread gets its tasks in the order they were chosen in.
            return self._threads[chosen].submit(self._run, chosen, rows, task)

    def _run(self, index: int, rows: int, task: Callable[[Executor], None]) -> None:
        try:
            task(self._executors[index])
        finally:
            with self._lock:
                self._choice.give_back(index, rows)

    def close(self) -> None:
        """Wait for what runs, and end the threads. Safe to call twice."""
        for thread in self._threads:
            thread.shutdown()
