"""The end of a server: ports drained, models unloaded, and over when the time is up."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

log = logging.getLogger(__name__)

#: The part of the timeout after which models are unloaded though requests are in flight: those
#: that have none are then through before one that hangs lets the time run out.
_DRAINING_PART = 0.75
_TELL_EVERY_S = 1.0
#: How long requests may have been through before that is seen.
_LOOK_EVERY_S = 0.02
#: A loop whose clock has ticks, as uvloop's has, may end a wait one tick early.
_TICK_S = 0.005
#: What a server gets beyond its timeout to say that it is over, and to leave.
_LEAVING_S = 1.0
_STANDARD_ERROR = 2


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


class Models(Protocol):
    """What is behind the ports, and ends before the last of these."""

    def refuse(self) -> None:
        """Take no new requests; what is in flight goes on."""

    def in_flight(self) -> Sequence[tuple[str, int, int]]:
        """Models, their versions, and how many requests each has that are waited for."""

    @property
    def live(self) -> int:
        """How many are not finalized."""

    def unload(self) -> None:
        """Answer what is in flight and finalize. Blocks."""


class ExitTimeout(Exception):
    """Something was left when the time was up."""


def end_for_certain(timeout_s: float) -> None:
    """End the process a second after `timeout_s` from now, with exit code 1, if it is there then.

    `shut_down` cannot where a model holds the interpreter's lock, or has left a thread that the
    interpreter waits for. The stacks of all threads are printed, that of the model among them.
    """
    # A thread in C, which needs no lock.
    faulthandler.dump_traceback_later(timeout_s + _LEAVING_S, exit=True, file=_STANDARD_ERROR)


async def shut_down(
    first: Mapping[str, Listener],
    models: Models | None,
    last: Mapping[str, Listener],
    timeout_s: float,
    *,
    draining: float = _DRAINING_PART,
) -> None:
    """Drain the `first` ports, which have names for the log, then unload the models.

    As in Triton, the `last` ports are open meanwhile, so that clients hear what is going on:
    requests go on until the first ports are drained, are refused while those in flight are
    answered, and then find no model. Unloading begins when `draining` of the timeout is over,
    whatever is in flight then. All of it shares one timeout, and the log tells every second what
    is still waited for.

    Raises ExitTimeout if a request was not answered or a model not finalized within `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    drained_by = deadline - timeout_s * (1 - draining)

    def left_s() -> int:
        return max(0, round(deadline - loop.time()))

    def tell_connections(listeners: Mapping[str, Listener]) -> None:
        for name, listener in listeners.items():
            if listener.connections:
                found = listener.connections
                log.info("Timeout %d: Found %d %s connections", left_s(), found, name)

    def tell_requests() -> None:
        assert models is not None
        found = models.in_flight()
        log.info(
            "Timeout %d: Found %d model versions that have in-flight inferences",
            left_s(),
            len(found),
        )
        for name, version, count in found:
            log.info("Model '%s' (version %d) has %d in-flight inferences", name, version, count)

    def tell_models() -> None:
        assert models is not None
        log.info("Timeout %d: Found %d live models", left_s(), models.live)

    drained = _drained(first)
    work = [drained]
    await _done_by(drained_by, lambda: tell_connections(first), drained)
    if first_ended := drained.done():
        _close(first)
    if models is not None:
        models.refuse()
        log.info("Waiting for in-flight requests to complete.")
        tell_requests()
        answered = asyncio.ensure_future(_answered(models))
        await _done_by(drained_by, tell_requests, answered, told=True)
        answered.cancel()
        log.info("All models are stopped, unloading models")
        work.append(_in_thread(models.unload))
        await _done_by(deadline, tell_models, *work)
    work.append(_drained(last))
    in_time = await _done_by(deadline, lambda: tell_connections(last), *work)
    if not first_ended:
        _close(first)
    _close(last)
    if not in_time:
        for future in work:
            future.cancel()
        log.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
        raise ExitTimeout
    if models is not None:
        tell_models()


def _drained(listeners: Mapping[str, Listener]) -> asyncio.Future[None]:
    """Have the ports take nothing more; done when nothing is in flight."""
    for listener in listeners.values():
        listener.stop_accepting()
    return asyncio.ensure_future(_wait_until_drained(listeners))


async def _wait_until_drained(listeners: Mapping[str, Listener]) -> None:
    for listener in listeners.values():
        await listener.drained()


async def _answered(models: Models) -> None:
    """Return when no request is in flight that is waited for."""
    while models.in_flight():
        await asyncio.sleep(_LOOK_EVERY_S)


async def _done_by(
    deadline: float, tell: Callable[[], None], *work: asyncio.Future[None], told: bool = False
) -> bool:
    """Whether all of `work` is done before the loop's `deadline`; it goes on if it is not.

    What is waited for is `told` already, or told first.
    """
    loop = asyncio.get_running_loop()
    while pending := [future for future in work if not future.done()]:
        if not told:
            tell()
        told = False
        left_s = deadline - loop.time()
        if left_s < _TICK_S:
            return False
        await asyncio.wait(pending, timeout=min(left_s, _TELL_EVERY_S))
    return True


def _in_thread(finalize: Callable[[], None]) -> asyncio.Future[None]:
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
