"""Which of several lanes executes a launch: the one with the least rows before it.

A lane is one engine on one device, executing one launch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

Lane = TypeVar("Lane")


class LeastRows:
    """The choice itself: pure, and fair among equals."""

    def __init__(self, lanes: int) -> None:
        self._outstanding = [0] * lanes
        self._taken = [0] * lanes

    @property
    def outstanding(self) -> tuple[int, ...]:
        """The rows that each lane has been given and not finished."""
        return tuple(self._outstanding)

    def take(self, rows: int, lost: Collection[int] = ()) -> int:
        """The lane with the least outstanding rows, and of these the least used; now with more.

        lost: lanes to take only if there are no others. They finish at once and so would get most.
        """
        lane = min(
            range(len(self._outstanding)),
            key=lambda i: (i in lost, self._outstanding[i], self._taken[i], i),
        )
        self._outstanding[lane] += rows
        self._taken[lane] += 1
        return lane

    def give_back(self, lane: int, rows: int) -> None:
        """The lane has finished these rows."""
        self._outstanding[lane] -= rows


class Dispatcher(Generic[Lane]):
    """Runs tasks on lanes, each lane's tasks in order and one at a time. Safe from any thread.

    One lane is used on the caller's own thread: no hand-over, and none of its cost. Of several,
    each has a thread.
    """

    def __init__(
        self, lanes: Sequence[Lane], name: str, lost: Callable[[Lane], bool] = lambda lane: False
    ) -> None:
        """name: of threads, for people. lost: whether a lane can execute nothing any more."""
        self._lanes = tuple(lanes)
        self._lost = lost
        self._choice = LeastRows(len(lanes))
        self._lock = Lock()
        self._threads = (
            [ThreadPoolExecutor(1, f"{name}-lane-{index}") for index in range(len(lanes))]
            if len(lanes) > 1
            else []
        )

    @property
    def outstanding(self) -> tuple[int, ...]:
        """The rows that each of several lanes has been given and not finished."""
        with self._lock:
            return self._choice.outstanding

    def run_all(self, tasks: Sequence[tuple[int, Callable[[Lane], None]]]) -> None:
        """Run all tasks, each its rows and what to do on a lane; returns when all are done.

        Raises what a task raised, the first of them, after all are done.
        """
        if not self._threads:
            with self._lock:
                for _, task in tasks:
                    task(self._lanes[0])
            return
        futures = [self._submit(rows, task) for rows, task in tasks]
        raised = [error for future in futures if (error := future.exception()) is not None]
        if raised:
            raise raised[0]

    def _submit(self, rows: int, task: Callable[[Lane], None]) -> Future[None]:
        with self._lock:
            lost = [index for index, lane in enumerate(self._lanes) if self._lost(lane)]
            lane = self._choice.take(rows, lost)
            return self._threads[lane].submit(self._run, lane, rows, task)

    def _run(self, lane: int, rows: int, task: Callable[[Lane], None]) -> None:
        try:
            task(self._lanes[lane])
        finally:
            with self._lock:
                self._choice.give_back(lane, rows)

    def close(self) -> None:
        """Wait for what runs, and end the threads. Safe to call twice."""
        for thread in self._threads:
            thread.shutdown()
