"""Work that blocks, in the background: done on a thread of its own, answered on the loop's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Background:
    """Runs what would hold up the loop. Each piece of work has a thread while it lasts.

    The threads are daemons: work that hangs, such as a model that never finishes loading, must
    not keep the process when it is to end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(
        self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
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

    def _post(self, call: Callable[[T], None], argument: T) -> None:
        with contextlib.suppress(RuntimeError):  # too late: the loop is gone
            self._loop.call_soon_threadsafe(call, argument)
