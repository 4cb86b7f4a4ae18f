"""A mailbox: takes items from any thread to the event loop's, with few wake-ups."""

from __future__ import annotations

import asyncio
import logging
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
