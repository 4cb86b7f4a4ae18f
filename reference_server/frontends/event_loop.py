"""Between the event loop and other threads: items brought to it, and work that would hold it up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items posted by any thread are given to `receive` on the loop's thread, in order.

    While a wake-up is on its way no other is sent: under load one wake-up brings many items.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[T], None]) -> None:
        self._loop = loop
        self._receive = receive
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
        while items:
            try:
                self._receive(items.popleft())
            except Exception:  # those behind it must not wait for the next wake-up
                log.exception("an answer was lost")


R = TypeVar("R")


class Background:
    """Runs what would hold up the loop. Each piece of work has a thread while it lasts.

    The threads are daemons: work that hangs, such as a model that never finishes loading, must
    not keep the process when it is to end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(
        self, work: Callable[[], R], done: Callable[[R], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do `work`, then call `done` with its result or `failed`, on the loop's thread."""

        def in_background() -> None:
            try:
                result = work()
            except Exception as error:
                self._post(failed, error)
            else:
                self._post(done, result)

        threading.Thread(target=in_background, name="background", daemon=True).start()

    def _post(self, call: Callable[[R], None], argument: R) -> None:
        with contextlib.suppress(RuntimeError):  # too late: the loop is gone
            self._loop.call_soon_threadsafe(call, argument)
