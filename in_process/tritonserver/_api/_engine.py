"""A server that runs on an event loop in a thread of this process, and its log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Protocol, TypeVar

from reference_server.frontends.event_loop import run_on
from reference_server.frontends.http.pages import encode_metrics
from reference_server.observability import logs
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.options import ServerOptions
from reference_server.server import Server as CoreServer
from reference_server.shutdown import ExitTimeout, Listener
from tritonserver._c import InternalError, LogLevel, UnavailableError, raising

#: Receives level, file name, line number, microseconds since 1970, and text of a log record.
LogCallback = Callable[[LogLevel, str, int, int, str], object]
T = TypeVar("T")


class Engine:
    """The handle of a running server, shared by its models and frontends.

    The server stops when this object is garbage-collected.
    """

    def __init__(self, running: Running) -> None:
        self.running = running
        # Not called at exit: threads cannot be started then, and all threads are daemons.
        weakref.finalize(self, running.abandon).atexit = False

    @property
    def core(self) -> CoreServer:
        """The server, for calls that may block.

        Raises UnavailableError if the server has stopped, in a forked process, and on the thread of
        the server's event loop, which must not wait.
        """
        self.running.check()
        return self.running.core


class Pending(Protocol):
    """A request that has not received all its responses."""

    def abort(self) -> None:
        """End the request with an error, unless it has ended."""


class Running:
    """A running server, its event loop and its thread."""

    def __init__(
        self, options: ServerOptions, log_callback: LogCallback | None, registry: MetricRegistry
    ) -> None:
        self.options = options
        self._process = os.getpid()
        self._lock = threading.RLock()
        self.has_stopped = False
        self.pending: weakref.WeakSet[Pending] = weakref.WeakSet()
        self.listeners: dict[str, Listener] = {}
        with contextlib.ExitStack() as stack:
            stack.callback(_configure_log(options, log_callback))
            self.core = CoreServer(options, registry=registry)
            self.loop = asyncio.new_event_loop()
            # A daemon, so that a server that is not stopped does not keep the process alive.
            self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
            self._thread.start()
            stack.callback(self._end_loop)
            assert options.metrics is not None
            self._metrics = self.core.metrics_gateway(options.metrics)
            self._collecting = threading.RLock()
            try:
                with raising():
                    self.wait_for(self.core.load_on(self.loop))
            except BaseException:
                with contextlib.suppress(ExitTimeout):
                    self.wait_for(self.core.shut_down({}))
                raise
            self._resources = stack.pop_all()

    def check_process(self) -> None:
        """Raise UnavailableError in a forked process, which has none of the server's threads."""
        if os.getpid() != self._process:
            raise UnavailableError(
                f"server: found process {os.getpid()}; expected process {self._process}, which "
                "started the server. Start another server in the forked process"
            )

    def check(self) -> None:
        """Raise UnavailableError unless the caller may wait for the server; see `Engine.core`."""
        self.check_process()
        if self.has_stopped:
            raise UnavailableError("Server not ready")
        if threading.current_thread() is self._thread:
            raise UnavailableError(
                "server: found a call on the thread of its event loop, such as from a log "
                "callback; expected another thread"
            )

    def on_loop(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which runs on the event loop. Also raises like `check`."""
        self.check_process()  # before the lock, whose state a forked process has copied
        with self._lock:  # so that the loop runs the call before it ends
            self.check()
            done = run_on(self.loop, call)
        return done.result()

    def metrics_page(self) -> str:
        """Return all metrics as text. Raises like `check`.

        The calling thread collects them: with many models this takes long, and the event loop must
        serve requests.
        """
        self.check()
        with self._collecting:  # one thread at a time
            return encode_metrics(self._metrics.families()).decode()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that runs on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        """Stop; see `Server.stop`. May be called once."""
        try:
            self.wait_for(self.core.shut_down(self.listeners))
        except ExitTimeout:
            raise InternalError("Exit timeout expired. Exiting immediately.") from None
        finally:
            with self._lock:
                self.has_stopped = True
            self._resources.close()
            for stream in list(self.pending):
                stream.abort()

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def abandon(self) -> None:
        """Stop on another thread, since garbage is collected on any thread."""
        if self.has_stopped or os.getpid() != self._process:
            return

        def stop() -> None:
            with contextlib.suppress(InternalError):
                self.stop()

        threading.Thread(target=stop, name="stop of a lost server").start()


def _configure_log(options: ServerOptions, callback: LogCallback | None) -> Callable[[], None]:
    """Configure the log; return a function that restores the log unless another server did."""
    logger = logging.getLogger(logs.ROOT)
    before, propagate, level = logger.handlers[:], logger.propagate, logger.level
    if callback is None:
        try:
            logs.configure(options.log, splits=options.profile.splits_log)
        except OSError as error:
            raise InternalError(f"Failed to open log file: {error.strerror}") from None
    else:
        logger.handlers[:] = [_CallbackHandler(callback)]
        logger.propagate = False
        logs.apply(options.log)
    own = logger.handlers[:]

    def restore() -> None:
        if logger.handlers == own:
            logger.handlers[:], logger.propagate = before, propagate
            logger.setLevel(level)
        for handler in own:
            handler.close()

    return restore


class _CallbackHandler(logging.Handler):
    """Passes records to a log callback."""

    _LEVELS: ClassVar = {
        logging.DEBUG: LogLevel.VERBOSE,
        logging.INFO: LogLevel.INFO,
        logging.WARNING: LogLevel.WARN,
    }

    def __init__(self, callback: LogCallback) -> None:
        super().__init__()
        self._callback = callback
        self._calls = threading.local()

    def handle(self, record: logging.LogRecord) -> bool:
        """Pass a record on, without the lock: a callback may wait for a thread that logs."""
        if shown := bool(self.filter(record)):
            self.emit(record)
        return shown

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._calls, "active", False):
            return  # a record of the callback itself
        self._calls.active = True
        try:
            text = record.getMessage()
            if record.exc_info:
                text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
            level = self._LEVELS.get(record.levelno, LogLevel.ERROR)
            when = int(record.created * 1_000_000)
            self._callback(level, record.filename, record.lineno, when, text)
        except Exception:
            self.handleError(record)
        finally:
            self._calls.active = False
