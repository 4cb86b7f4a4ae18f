"""A mailbox to the event loop, background threads, and calls at the end of loop iterations."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from reference_server.core.errors import unavailable

log = logging.getLogger(__name__)

#: The longest time in one loop iteration for one connection, or for answers from other threads.
SHARE_S = 0.002
#: The largest number of loop iterations during which requests for one batch are collected.
MAX_COLLECTING_ITERATIONS = 4
#: Number of codec threads, which parse or encode bodies outside the loop. They compete for the CPU,
#: and each may use as much memory as the largest allowed body.
CODECS = 2

T = TypeVar("T")


class LoopIterationEnds:
    """Calls at the end of an event loop's iterations. Thread-safe."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: dict[Callable[[], None], None] = {}  # in order, each once
        self._requests = self._iterations = 0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop."""
        self._loop = loop

    def at_end(self, call: Callable[[], None]) -> bool:
        """Call `call` once after everything that is readable now was read.

        If `call` is passed several times within an iteration, it is called once. Several requests
        in one iteration make it likely that more are about to arrive, so the loop first reads
        again, for a few iterations at most. Then a whole batch is handed over at once. A single
        request does not wait.

        Returns:
            False if this is not the loop's thread; then `call` is not called.
        """
        loop = self._loop
        if loop is None or asyncio._get_running_loop() is not loop:
            return False
        if not self._calls:
            loop.call_soon(self._end)
        self._calls[call] = None
        self._requests += 1
        return True

    def _end(self) -> None:
        requests, self._requests = self._requests, 0
        self._iterations += 1
        if requests > len(self._calls) and self._iterations < MAX_COLLECTING_ITERATIONS:
            assert self._loop is not None
            self._loop.call_soon(self._end)
            return
        self._iterations = 0
        calls, self._calls = self._calls, {}
        for call in calls:
            try:
                call()
            except Exception:  # the other calls must still be made
                log.exception("A call at the end of a loop iteration failed")


class Mailbox(Generic[T]):
    """Passes items from any thread to `receive` on the loop's thread, in order.

    Only one wake-up is pending at a time, so under load one wake-up delivers many items. Items take
    at most `SHARE_S` of a loop iteration; further items follow in the next iteration. `clock` is in
    seconds.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        receive: Callable[[T], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._receive = receive
        self._clock = clock
        self._items: deque[T] = deque()
        self._is_awake = False  # `post` does not have to schedule a call
        self._continues = False  # a call of `_drain` is scheduled

    def post(self, item: T) -> None:
        """Post `item`. Never blocks; thread-safe."""
        self._items.append(item)
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        # A second `_drain` in each iteration would double the share, and start a third one.
        if not self._continues:
            self._drain()

    def _drain(self) -> None:
        self._continues = False
        items = self._items
        over_s = self._clock() + SHARE_S
        while items:
            try:
                self._receive(items.popleft())
            except Exception:  # the other items must not wait for the next wake-up
                log.exception("An answer could not be delivered")
            if self._clock() >= over_s:
                break
        if not items:
            self._is_awake = False
        if items:  # the share is used up, or an item was posted before the flag was cleared
            self._continues = True
            self._loop.call_soon(self._drain)


R = TypeVar("R")


def run_on(loop: asyncio.AbstractEventLoop, call: Callable[[], R]) -> Future[R]:
    """Run `call` on the loop's thread; return a future of its result. Thread-safe."""
    done: Future[R] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    loop.call_soon_threadsafe(run)
    return done


class Background:
    """Runs blocking work on one thread per piece of work.

    At most `most` pieces run in parallel (None: no limit); further pieces wait in their order. No
    thread is joined: hanging work, such as a model that never finishes loading, must not keep the
    process from exiting.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int | None = None) -> None:
        self._loop = loop
        self._most = most
        # Used on the loop's thread only.
        self._running = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def run(
        self, work: Callable[[], R], done: Callable[[R], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run `work` on a thread, then call `done` or `failed` on the loop's thread.

        Must be called on the loop's thread if there is a limit.

        Args:
            work: the blocking function.
            done: called with the result of `work`.
            failed: called with the exception of `work`, or with ServerError UNAVAILABLE if no
                thread can be started.
        """

        def in_background() -> None:
            try:
                result = work()
            except Exception as error:
                self._post(failed, error)
            else:
                self._post(done, result)
            if self._most is not None:
                self._post(self._ended, None)

        def start() -> None:
            try:
                # Not `threading.Thread`, whose `start` waits until the thread runs: without memory
                # the thread may end before that, and the loop would wait for ever.
                start_new_thread(in_background, ())
            except (RuntimeError, MemoryError) as error:
                self._post(failed, unavailable(f"failed to start a thread: {error}"))
                if self._most is not None:
                    self._post(self._ended, None)

        if self._most is None:
            start()
        elif self._running < self._most:
            self._running += 1
            start()
        else:
            self._waiting.append(start)

    def _ended(self, _: None) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._running -= 1

    def _post(self, call: Callable[[R], None], argument: R) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, argument)


class SharedWork(Generic[R]):
    """Runs one function in the background, once for all callers that wait for its result.

    A caller gets the result of a run that started after its call. Runs never overlap. Used on the
    loop's thread.

    Args:
        background: runs the function.
        work: the blocking function.
    """

    def __init__(self, background: Background, work: Callable[[], R]) -> None:
        self._background = background
        self._work = work
        self._is_running = False
        self._waiting: list[tuple[Callable[[R], None], Callable[[Exception], None]]] = []

    def run(self, done: Callable[[R], None], failed: Callable[[Exception], None]) -> None:
        """Call `done` with the next result, or `failed` with its exception."""
        self._waiting.append((done, failed))
        if not self._is_running:
            self._start()

    def _start(self) -> None:
        self._is_running = True
        callers, self._waiting = self._waiting, []
        self._background.run(
            self._work,
            lambda result: self._ended([partial(done, result) for done, _ in callers]),
            lambda error: self._ended([partial(failed, error) for _, failed in callers]),
        )

    def _ended(self, calls: Iterable[Callable[[], None]]) -> None:
        self._is_running = False
        if self._waiting:
            self._start()
        for call in calls:
            call()
