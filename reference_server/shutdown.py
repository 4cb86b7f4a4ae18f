"""The way back: ports refuse, requests in flight are answered, models are finalized.

All of it shares one timeout, and the log tells every second what is still waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

log = logging.getLogger(__name__)

#: The part of the timeout after which models are finalized though requests are in flight: those
#: that have none are then through before one that hangs lets the time run out.
_DRAINING = 0.75
_TELLS_EVERY_S = 1.0
#: A loop whose clock has ticks, as uvloop's has, may end a wait one tick early.
_TICK_S = 0.005


class Listener(Protocol):
    """A port: opened, told to take nothing more, drained, closed; in this order."""

    async def open(self) -> None:
        """Listen. Raises ServerError if the port is taken."""

    @property
    def connections(self) -> int:
        """How many there are."""

    def stop_accepting(self) -> None:
        """Take no new work; what is in flight goes on."""

    async def drained(self) -> None:
        """Return when nothing is in flight."""

    def close(self) -> None:
        """Give up the port."""


class ExitTimeout(Exception):
    """Something was left when the time was up."""


async def shut_down(
    listeners: Mapping[str, Listener],
    finalize: Callable[[], None],
    live: Callable[[], int],
    timeout_s: float,
    *,
    draining: float = _DRAINING,
) -> None:
    """Drain the ports, which have names for the log, then finalize the models.

    That begins when `draining` of the timeout is over, whatever is in flight then.

    `finalize` blocks and gets a thread of its own; `live` says how many models it has still to do.
    Raises ExitTimeout if a request was not answered or a model not finalized within `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s

    def left_s() -> int:
        return max(0, round(deadline - loop.time()))

    def tell_connections() -> None:
        for name, listener in listeners.items():
            if listener.connections:
                found = listener.connections
                log.info("Timeout %d: Found %d %s connections", left_s(), found, name)

    def tell_models() -> None:
        log.info("Timeout %d: Found %d live models", left_s(), live())

    for listener in listeners.values():
        listener.stop_accepting()
    drained = asyncio.ensure_future(_drained(listeners))
    log.info("Waiting for in-flight requests to complete.")
    await _done(deadline - timeout_s * (1 - draining), tell_connections, drained)
    if answered := drained.done():
        _close(listeners)
    log.info("All models are stopped, unloading models")
    in_time = await _done(deadline, tell_models, drained, _begin(finalize))
    if not answered:
        _close(listeners)
    if not in_time:
        drained.cancel()
        log.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
        raise ExitTimeout
    tell_models()


async def _drained(listeners: Mapping[str, Listener]) -> None:
    for listener in listeners.values():
        await listener.drained()


async def _done(deadline: float, tell: Callable[[], None], *work: asyncio.Future[None]) -> bool:
    """Whether all of `work` is done before the loop's `deadline`; it goes on if it is not."""
    loop = asyncio.get_running_loop()
    while pending := [future for future in work if not future.done()]:
        tell()
        left_s = deadline - loop.time()
        if left_s < _TICK_S:
            return False
        await asyncio.wait(pending, timeout=min(left_s, _TELLS_EVERY_S))
    return True


def _begin(finalize: Callable[[], None]) -> asyncio.Future[None]:
    """Run `finalize` on a thread; the future is done when it has returned."""
    loop = asyncio.get_running_loop()
    finalized: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        finalize()
        with contextlib.suppress(RuntimeError):  # too late: the loop is gone
            loop.call_soon_threadsafe(finalized.set_result, None)

    # A daemon: it must not keep the process, as a thread of the loop's own pool would.
    threading.Thread(target=run, name="close", daemon=True).start()
    return finalized


def _close(listeners: Mapping[str, Listener]) -> None:
    for listener in listeners.values():
        listener.close()
