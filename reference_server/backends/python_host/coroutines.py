"""The event loops of one instance: that of its coroutines, and that of its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures

from reference_server.observability import printing


class ThreadLoop:
    """What `asyncio.get_event_loop()` gives a model that asks in `initialize` or `execute`.

    Nothing runs on it but what the model runs. In Triton the model's thread is the main one, which
    has a loop when it asks; an instance's thread has one from `begin` to `end`, both called there.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Give the calling thread a loop."""
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def end(self) -> None:
        """Take it away; what the model still runs on it, on a thread of its own, goes on."""
        loop, self._loop = self._loop, None
        asyncio.set_event_loop(None)
        if loop is not None and not loop.is_running():
            loop.close()


class CoroutineRunner:
    """Runs coroutines on one event loop, in a thread of its own that the first of them starts.

    What they print is that of `name`.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def thread_id(self) -> int | None:
        """The identifier of the loop's thread; None before the first coroutine."""
        return None if self._thread is None else self._thread.ident

    def run(
        self, coroutine: Coroutine[object, object, object], timeout_s: float | None = None
    ) -> object:
        """What `coroutine` returns. Blocks until then; raises what it raises. Any thread.

        After `timeout_s` it is cancelled, and TimeoutError raised.
        """
        outcome = asyncio.run_coroutine_threadsafe(_outcome(coroutine), self._running_loop())
        try:
            result, error = outcome.result(timeout_s)
        except futures.TimeoutError:
            outcome.cancel()
            raise
        if error is None:
            return result
        try:
            raise error
        finally:
            # The traceback holds this frame: the two would keep each other, and what the model had.
            del outcome, error

    def start(
        self,
        coroutine: Coroutine[object, object, object],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Run `coroutine` without waiting for it; `failed` is told what it raises, on the loop."""
        asyncio.run_coroutine_threadsafe(_watched(coroutine, failed), self._running_loop())

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            with self._starting:
                if self._loop is None:
                    loop = asyncio.new_event_loop()
                    loop.call_soon(printing.speak_as, self._name)
                    self._thread = threading.Thread(target=loop.run_forever, daemon=True)
                    self._thread.start()
                    self._loop = loop
        return self._loop

    def stop(self) -> None:
        """End the loop and its thread; what still runs there is abandoned."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None


async def _watched(
    coroutine: Coroutine[object, object, object], failed: Callable[[BaseException], None]
) -> None:
    _, error = await _outcome(coroutine)
    if error is not None:
        failed(error)


async def _outcome(
    coroutine: Coroutine[object, object, object],
) -> tuple[object, BaseException | None]:
    """Catches everything: asyncio lets a SystemExit through, which would end the loop."""
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error
