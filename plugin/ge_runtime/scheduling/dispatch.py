"""How executions run: which executor takes one, and what is done about one that fails.

An executor is one engine on one device, running one execution at a time. Each execution goes to the
one with the fewest rows before it; one that fails is halved until the requests to blame stand
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Generic, TypeAlias, TypeVar

from ge_runtime.errors import EngineFault, HandleFault, OutOfMemory

Executor = TypeVar("Executor")
News = TypeVar("News")

Task: TypeAlias = Callable[[Executor, Callable[[News], None]], None]
"""What to do on an executor; it may tell of things while it is done."""


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

    def run_all(
        self,
        tasks: Sequence[tuple[int, Task[Executor, News]]],
        hear: Callable[[News], None],
        order: Callable[[Sequence[int]], Sequence[int]] = lambda places: places,
    ) -> None:
        """Run all tasks, each its rows and what to do on an executor; returns when all are done.

        hear: is told what a task tells by its second argument, on the caller's own thread: of one
        executor before the task goes on, of several while they go on. It must not raise.
        order: the places of the tasks that one executor has been given, as it is to run them.
        Raises what a task raised, the first of them, after all are done.
        """
        if not self._threads:
            # The lock is held for the whole batch: an executor is for one thread at a time.
            with self._lock:
                for place in order(range(len(tasks))):
                    tasks[place][1](self._executors[0], hear)
            return
        told: SimpleQueue[tuple[News] | None] = SimpleQueue()  # None: a task has ended
        futures = self._submit_all(tasks, told, order)
        left = len(futures)
        while left:
            if (news := told.get()) is None:
                left -= 1
            else:
                hear(*news)
        # `exception` waits for its task: all are done before anything is raised.
        raised = [error for future in futures if (error := future.exception()) is not None]
        if raised:
            raise raised[0]

    def _submit_all(
        self,
        tasks: Sequence[tuple[int, Task[Executor, News]]],
        told: SimpleQueue[tuple[News] | None],
        order: Callable[[Sequence[int]], Sequence[int]],
    ) -> list[Future[None]]:
        given: list[list[int]] = [[] for _ in self._executors]
        with self._lock:
            lost = [index for index, executor in enumerate(self._executors) if self._lost(executor)]
            for place, (rows, _) in enumerate(tasks):
                given[self._choice.take(rows, lost)].append(place)
            # Under the lock, so that no other batch comes between an executor's tasks.
            return [
                self._threads[index].submit(self._run, index, tasks[place], told)
                for index, places in enumerate(given)
                for place in order(places)
            ]

    def _run(
        self,
        index: int,
        task: tuple[int, Task[Executor, News]],
        told: SimpleQueue[tuple[News] | None],
    ) -> None:
        rows, do = task
        try:
            do(self._executors[index], lambda news: told.put((news,)))
        finally:
            with self._lock:
                self._choice.give_back(index, rows)
            told.put(None)

    def close(self) -> None:
        """Wait for what runs, and end the threads. Safe to call twice."""
        for thread in self._threads:
            thread.shutdown()


Member = TypeVar("Member")
Answer = TypeVar("Answer")


def isolate(
    members: Sequence[Member],
    execute: Callable[[Sequence[Member]], Sequence[Answer]],
    deliver: Callable[[Member, Answer | EngineFault | OutOfMemory | HandleFault], None],
    still_waiting: Callable[[Sequence[Member]], Sequence[Member]],
) -> int:
    """Deliver to every member its answer or its own fault; returns how many executions failed.

    execute: runs members together, one answer each, or raises for all of them.
    deliver: called once per member that was executed, alone or in company.
    still_waiting: asked before each execution after a failure; members that it leaves out are not
    executed again, and are its own to answer.

    An execution that raises EngineFault, OutOfMemory or HandleFault is cut in halves, the earlier
    one first. One culprit among n members takes 1 + 2 * log2(n) executions: 9 for 16. What
    `execute` raises besides is about no member, e.g. that the device is lost, and passes.
    """
    failures = 0
    waiting = [members]
    while waiting:
        batch = waiting.pop()
        if failures:  # before the first execution, whoever calls has asked
            batch = still_waiting(batch)
        if not batch:
            continue
        try:
            answers = execute(batch)
        except (EngineFault, OutOfMemory, HandleFault) as fault:
            failures += 1
            if len(batch) == 1:
                deliver(batch[0], fault)
            else:
                middle = len(batch) // 2
                # A stack, so that the earlier half is next: requests keep their order.
                waiting += [batch[middle:], batch[:middle]]
        else:
            for member, answer in zip(batch, answers, strict=True):
                deliver(member, answer)
    return failures
