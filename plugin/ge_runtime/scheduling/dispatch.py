"""Chooses the executor of an execution, and isolates requests that make an execution fail.

An executor is one engine on one device and runs one execution at a time. Each execution goes to the
executor with the fewest outstanding rows. A failed execution is halved until the failing requests
are alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Generic, TypeAlias, TypeVar

from ge_runtime.errors import EngineFault, HandleFault, OutOfMemory

Executor = TypeVar("Executor")
Message = TypeVar("Message")

Task: TypeAlias = Callable[[Executor, Callable[[Message], None] | None], None]
"""Work on an executor, which may send messages while it runs."""


class LeastRows:
    """Chooses the executor with the fewest rows. Not thread-safe."""

    def __init__(self, executors: int) -> None:
        self._outstanding = [0] * executors
        self._taken = [0] * executors

    @property
    def outstanding(self) -> tuple[int, ...]:
        """The rows that each executor was given and has not finished."""
        return tuple(self._outstanding)

    def take(self, rows: int, lost: Collection[int] = ()) -> int:
        """Choose the executor with the fewest outstanding rows; if equal, the least used executor.

        lost: executors to choose only if all are lost: they fail immediately, and so would get most
        of the work.
        """
        index = min(
            range(len(self._outstanding)),
            key=lambda i: (i in lost, self._outstanding[i], self._taken[i], i),
        )
        self._outstanding[index] += rows
        self._taken[index] += 1
        return index

    def give_back(self, index: int, rows: int) -> None:
        """Note that the executor has finished these rows."""
        self._outstanding[index] -= rows


class Dispatcher(Generic[Executor]):
    """Runs tasks on executors. Each executor runs its tasks in order, one at a time.

    A single executor runs on the caller's thread, without the cost of a hand-over. Several
    executors have a thread each. Safe from any thread.
    """

    def __init__(
        self,
        executors: Sequence[Executor],
        name: str,
        lost: Callable[[Executor], bool] = lambda executor: False,
    ) -> None:
        """name: prefix of thread names. lost: returns True if an executor is lost."""
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
        """The rows that each of several executors was given and has not finished."""
        with self._lock:
            return self._choice.outstanding

    def run_all(
        self,
        tasks: Sequence[tuple[int, Task[Executor, Message]]],
        on_message: Callable[[Message], None] | None = None,
        order: Callable[[Sequence[int]], Sequence[int]] | None = None,
    ) -> None:
        """Run all tasks. Blocks until all are done.

        Args:
            tasks: Each is a number of rows and the work.
            on_message: Receives messages of tasks on the caller's thread. The task of a single
                executor waits for this function; tasks of several executors continue. It must not
                raise. None: no task sends messages.
            order: Returns the order of one executor's tasks, indexes of `tasks`; None keeps it.

        Raises:
            Exception: The first exception of a task, after all are done.
        """
        if not self._threads:
            # The lock is held for the whole batch, as an executor is for one thread at a time.
            with self._lock:
                places = range(len(tasks))
                for place in places if order is None else order(places):
                    tasks[place][1](self._executors[0], on_message)
            return
        messages: SimpleQueue[tuple[Message] | None] = SimpleQueue()  # None: a task has ended
        futures = self._submit_all(tasks, messages, order, sends=on_message is not None)
        left = len(futures)
        while left:
            if (message := messages.get()) is None:
                left -= 1
            elif on_message is not None:
                on_message(*message)
        # `exception` waits for its task: all are done before anything is raised.
        raised = [error for future in futures if (error := future.exception()) is not None]
        if raised:
            raise raised[0]

    def _submit_all(
        self,
        tasks: Sequence[tuple[int, Task[Executor, Message]]],
        messages: SimpleQueue[tuple[Message] | None],
        order: Callable[[Sequence[int]], Sequence[int]] | None,
        *,
        sends: bool,
    ) -> list[Future[None]]:
        given: list[list[int]] = [[] for _ in self._executors]
        with self._lock:
            lost = [index for index, executor in enumerate(self._executors) if self._lost(executor)]
            for place, (rows, _) in enumerate(tasks):
                given[self._choice.take(rows, lost)].append(place)
            # Under the lock, so that tasks of other batches do not come between these tasks.
            return [
                self._threads[index].submit(self._run, index, tasks[place], messages, sends)
                for index, places in enumerate(given)
                for place in (places if order is None else order(places))
            ]

    def _run(
        self,
        index: int,
        task: tuple[int, Task[Executor, Message]],
        messages: SimpleQueue[tuple[Message] | None],
        sends: bool,
    ) -> None:
        rows, do = task
        try:
            do(self._executors[index], (lambda own: messages.put((own,))) if sends else None)
        finally:
            with self._lock:
                self._choice.give_back(index, rows)
            messages.put(None)

    def close(self) -> None:
        """Wait for running tasks and end the threads. Safe to call twice."""
        for thread in self._threads:
            thread.shutdown()


Member = TypeVar("Member")


def isolate(
    members: Sequence[Member],
    execute: Callable[[Sequence[Member]], None],
    fail: Callable[[Member, EngineFault | OutOfMemory | HandleFault], None],
    still_waiting: Callable[[Sequence[Member]], Sequence[Member]],
    refuse: Callable[[Sequence[Member]], EngineFault | None] | None = None,
) -> int:
    """Execute members together or, after a fault, in parts; return the number of failed executions.

    An execution that raises EngineFault, OutOfMemory or HandleFault is split in halves; the earlier
    half is executed first. One failing member among n takes 1 + 2 * log2(n) executions: 9 for 16.
    Other exceptions of `execute` concern no single member, e.g. a lost device, and are raised.

    Args:
        members: The members of the execution.
        execute: Executes members together and answers them, or raises for all of them.
        fail: Receives the fault of a member that cannot be executed alone.
        still_waiting: Called before each execution after a failure. Members that it leaves out are
            not executed again; it answers them itself.
        refuse: Returns the fault of an execution that is known to fail, and so is not tried; None
            for other executions. By default all executions are tried.
    """
    failures = 0
    waiting = [members]
    while waiting:
        batch = waiting.pop()
        if failures:  # the caller has checked before the first execution
            batch = still_waiting(batch)
        if not batch:
            continue
        fault: EngineFault | OutOfMemory | HandleFault | None = refuse and refuse(batch)
        if fault is None:
            try:
                execute(batch)
                continue
            except (EngineFault, OutOfMemory, HandleFault) as error:
                failures += 1
                fault = error
        if len(batch) == 1:
            fail(batch[0], fault)
        else:
            middle = len(batch) // 2
            # A stack, so that the earlier half is next: requests keep their order.
            waiting += [batch[middle:], batch[:middle]]
        fault = None  # its traceback refers to this frame, and so to the batch
    return failures
