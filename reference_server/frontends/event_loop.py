"""Between the event loop and other threads: items brought to it, and work that would hold it up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from reference_server.core.errors import unavailable

log = logging.getLogger(__name__)

#: How long one connection, or the answers that wait, may keep the loop from all else.
SHARE_S = 0.002
#: How often the loop looks for more of what is asked for together, before it is handed over.
LOOKS = 4
#: Bodies that are read or written side by side away from the loop. They share the processor, and
#: each may become as large as the limit.
CODECS = 2

T = TypeVar("T")


class LoopTurns:
    """The turns of one event loop, once it is known. Any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: dict[Callable[[], None], None] = {}  # in order, each once
        self._asked = self._looks = 0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on `loop` is the one."""
        self._loop = loop

    def at_end(self, call: Callable[[], None]) -> bool:
        """Have `call` called once all that is readable now has been read; False on other threads.

        Who asks several times in a turn is called once, and there is company to be had: the loop
        looks again, as long as that brings more of it, so that a batch costs one hand-over. Who
        asks once in a turn does not wait.
        """
        loop = self._loop
        if loop is None or asyncio._get_running_loop() is not loop:
            return False
        if not self._calls:
            loop.call_soon(self._end)
        self._calls[call] = None
        self._asked += 1
        return True

    def _end(self) -> None:
        asked, self._asked = self._asked, 0
        self._looks += 1
        if asked > len(self._calls) and self._looks < LOOKS:
            assert self._loop is not None
            self._loop.call_soon(self._end)
            return
        self._looks = 0
        calls, self._calls = self._calls, {}
        for call in calls:
            try:
                call()
            except Exception:  # the others' requests must not wait for ever
                log.exception("at the end of a turn")


class Mailbox(Generic[T]):
    """Items posted by any thread are given to `receive` on the loop's thread, in order.

    While a wake-up is on its way no other is sent: under load one wake-up brings many items, as
    many as fit its share of the loop's turn. `clock` is in seconds.
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
        self._awake = False

    def post(self, item: T) -> None:
        """Hand over `item`. Never blocks; any thread."""
        self._items.append(item)
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Cleared first: an item posted from here on finds it false and sends a wake-up of its own.
        self._awake = False
        items = self._items
        over_s = self._clock() + SHARE_S
        while items:
            try:
                self._receive(items.popleft())
            except Exception:  # those behind it must not wait for the next wake-up
                log.exception("an answer was lost")
            if self._clock() >= over_s:
                self._awake = True
                self._loop.call_soon(self._drain)
                return


R = TypeVar("R")


class Background:
    """Runs what would hold up the loop. Each piece of work has a thread while it lasts.

    With `most`, so many pieces run side by side, and further ones wait in their order. Nobody waits
    for the threads: work that hangs, such as a model that never finishes loading, must not keep the
    process when it is to end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int | None = None) -> None:
        self._loop = loop
        self._most = most
        # Of the loop's thread alone.
        self._running = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def run(
        self, work: Callable[[], R], done: Callable[[R], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do `work`, then call `done` with its result or `failed`, on the loop's thread.

        `failed` is given UNAVAILABLE where the machine has no thread, or no memory for one, left.
        With `most`, to be called on the loop's thread, too.
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
                # Not `threading.Thread`, whose `start` waits until the thread has begun: without
                # memory it may be gone by then, and the loop would wait for ever.
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
        with contextlib.suppress(RuntimeError):  # too late: the loop is gone
            self._loop.call_soon_threadsafe(call, argument)
