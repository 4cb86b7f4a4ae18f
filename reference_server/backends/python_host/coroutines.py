"""The event loops of one instance: a loop for its coroutines, and a loop for its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures

from reference_server.observability import logs


class ThreadLoop:
    """The event loop that `asyncio.get_event_loop()` returns in `initialize` and `execute`.

    Only the model runs this loop. In Triton the model's thread is the main thread, for which
    asyncio creates a loop on demand. Here `begin` and `end` must be called on the instance's
    thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Set a new loop for the calling thread."""
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def end(self) -> None:
        """Remove the loop, and close it unless the model runs it on another thread."""
        loop, self._loop = self._loop, None
        asyncio.set_event_loop(None)
        if loop is not None and not loop.is_running():
            loop.close()


class CoroutineRunner:
    """Runs coroutines on one event loop, in a thread that starts with the first coroutine.

    The output of the coroutines is labelled with `name`.
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
        """Run a coroutine, wait for it, and return its result. Thread-safe.

        Raises the coroutine's exception. After `timeout_s`, cancels the coroutine and raises
        TimeoutError.
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
            # The traceback refers to this frame: without `del` the cycle would keep the batch.
            del outcome, error

    def start(
        self,
        coroutine: Coroutine[object, object, object],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Start a coroutine; `failed` receives its exception, on the loop."""
        asyncio.run_coroutine_threadsafe(_watched(coroutine, failed), self._running_loop())

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            with self._starting:
                if self._loop is None:
                    loop = asyncio.new_event_loop()
                    loop.call_soon(logs.speak_as, self._name)
                    self._thread = threading.Thread(target=loop.run_forever, daemon=True)
                    self._thread.start()
                    self._loop = loop
        return self._loop

    def stop(self) -> None:
        """Stop the loop and its thread; unfinished coroutines are abandoned."""
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
    """Return the result and the exception. asyncio would let a SystemExit end the loop."""
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error
