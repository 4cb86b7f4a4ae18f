"""The shutdown: drain the ports, unload the models, within one timeout."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

log = logging.getLogger(__name__)

#: The part of the timeout after which models are unloaded even if requests are in flight. Models
#: without requests are then finalized in time although another model hangs.
_DRAINING_SHARE = 0.75
_LOG_INTERVAL_S = 1.0
#: The interval between checks for requests in flight.
_CHECK_INTERVAL_S = 0.02
#: A loop whose clock has ticks, such as uvloop, may end a wait one tick early.
_TICK_S = 0.005
#: Time beyond the timeout for the last log lines and the exit.
_EXIT_MARGIN_S = 1.0
_STANDARD_ERROR = 2


class Listener(Protocol):
    """A port. Call the methods in this order."""

    async def open(self) -> None:
        """Listen. Raises ServerError if the port is taken."""

    @property
    def connections(self) -> int:
        """The number of open connections."""

    def stop_accepting(self) -> None:
        """Reject new work. Requests in flight continue."""

    async def drained(self) -> None:
        """Return when nothing is in flight."""

    def close(self) -> None:
        """Close the port."""


class Models(Protocol):
    """The loaded models. They are unloaded before the last ports close."""

    def refuse(self) -> None:
        """Reject new requests. Requests in flight continue."""

    def in_flight(self) -> Sequence[tuple[str, int, int]]:
        """Return model, version and request count of each version with requests in flight."""

    @property
    def live(self) -> int:
        """The number of versions that are not finalized."""

    def unload(self) -> None:
        """Finish the requests in flight and finalize the models. Blocks."""


class ExitTimeout(Exception):
    """Requests or models were left when the exit timeout expired."""


def exit_after(timeout_s: float) -> None:
    """Exit the process with code 1 if it still runs one second after `timeout_s` from now.

    `shut_down` cannot end a process in which a model holds the interpreter's lock or has left a
    thread that the interpreter waits for. The stacks of all threads are printed first.
    """
    # faulthandler uses a C thread, which does not need the interpreter's lock.
    faulthandler.dump_traceback_later(timeout_s + _EXIT_MARGIN_S, exit=True, file=_STANDARD_ERROR)


class _Progress:
    """Logs what the shutdown still waits for, and the time left until its deadline."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def _remaining_s(self) -> int:
        return max(0, round(self._deadline - asyncio.get_running_loop().time()))

    def log_connections(self, listeners: Mapping[str, Listener]) -> None:
        for name, listener in listeners.items():
            if found := listener.connections:
                log.info("Timeout %d: Found %d %s connections", self._remaining_s(), found, name)

    def log_requests(self, models: Models) -> None:
        found = models.in_flight()
        log.info(
            "Timeout %d: Found %d model versions that have in-flight inferences",
            self._remaining_s(),
            len(found),
        )
        for name, version, count in found:
            log.info("Model '%s' (version %d) has %d in-flight inferences", name, version, count)

    def log_models(self, models: Models) -> None:
        log.info("Timeout %d: Found %d live models", self._remaining_s(), models.live)


async def shut_down(
    first: Mapping[str, Listener],
    models: Models | None,
    last: Mapping[str, Listener],
    timeout_s: float,
    *,
    draining: float = _DRAINING_SHARE,
) -> None:
    """Drain the `first` ports, then unload the models, then drain the `last` ports.

    As in Triton, the `last` ports stay open until the end, so that clients see the state of the
    server. Their requests are served until the first ports are drained, then rejected, and find no
    models after unloading. The log reports every second what is still waited for.

    Args:
        first: ports by their name in the log.
        models: the loaded models; None if loading failed.
        last: ports by their name in the log.
        timeout_s: time limit for all of the shutdown, in seconds.
        draining: the share of the timeout after which models are unloaded even if requests are in
            flight.

    Raises:
        ExitTimeout: a request was not answered or a model not finalized within `timeout_s`.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    drained_by = deadline - timeout_s * (1 - draining)
    progress = _Progress(deadline)
    drained = _drained(first)
    work = [drained]
    await _done_by(drained_by, partial(progress.log_connections, first), drained)
    if first_ended := drained.done():
        _close(first)
    if models is not None:
        models.refuse()
        log.info("Waiting for in-flight requests to complete.")
        progress.log_requests(models)
        answered = asyncio.ensure_future(_answered(models))
        await _done_by(drained_by, partial(progress.log_requests, models), answered, is_logged=True)
        answered.cancel()
        log.info("All models are stopped, unloading models")
        work.append(_in_thread(models.unload))
        await _done_by(deadline, partial(progress.log_models, models), *work)
    work.append(_drained(last))
    in_time = await _done_by(deadline, partial(progress.log_connections, last), *work)
    if not first_ended:
        _close(first)
    _close(last)
    if not in_time:
        for future in work:
            future.cancel()
        log.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
        raise ExitTimeout
    if models is not None:
        progress.log_models(models)


def _drained(listeners: Mapping[str, Listener]) -> asyncio.Future[None]:
    """Stop accepting on the ports; the returned future is done when nothing is in flight."""
    for listener in listeners.values():
        listener.stop_accepting()
    return asyncio.ensure_future(_wait_until_drained(listeners))


async def _wait_until_drained(listeners: Mapping[str, Listener]) -> None:
    for listener in listeners.values():
        await listener.drained()


async def _answered(models: Models) -> None:
    while models.in_flight():
        await asyncio.sleep(_CHECK_INTERVAL_S)


async def _done_by(
    deadline: float,
    log_state: Callable[[], None],
    *work: asyncio.Future[None],
    is_logged: bool = False,
) -> bool:
    """Wait for all of `work` until `deadline`, in the loop's time. Return False if it comes first.

    `log_state` is called before each wait of at most one second, but with `is_logged` not before
    the first wait. Unfinished work continues.
    """
    loop = asyncio.get_running_loop()
    while pending := [future for future in work if not future.done()]:
        if not is_logged:
            log_state()
        is_logged = False
        remaining_s = deadline - loop.time()
        if remaining_s < _TICK_S:
            return False
        await asyncio.wait(pending, timeout=min(remaining_s, _LOG_INTERVAL_S))
    return True


def _in_thread(finalize: Callable[[], None]) -> asyncio.Future[None]:
    """Run `finalize` on a thread. The future is done when it has returned."""
    loop = asyncio.get_running_loop()
    finalized: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        finalize()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finalized.set_result, None)

    # A daemon thread does not keep the process alive, as a thread of the loop's pool would.
    threading.Thread(target=run, name="close", daemon=True).start()
    return finalized


def _close(listeners: Mapping[str, Listener]) -> None:
    for listener in listeners.values():
        listener.close()
