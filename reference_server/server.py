"""The composition root: builds the rooms, opens them in order, and shuts them down.

The only module that knows all rooms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from reference_server.core import forks
from reference_server.core.errors import internal, invalid_arg
from reference_server.core.ports import Clock, SystemClock
from reference_server.frontends.grpc import methods as grpc_methods
from reference_server.frontends.grpc.calls import Method
from reference_server.frontends.grpc.transport import GrpcListener
from reference_server.frontends.http.handlers import HttpHandlers, MetricsHandlers
from reference_server.frontends.http.listener import HttpListener
from reference_server.gateway.gateway import Gateway, MetricsGateway, new_registry
from reference_server.gateway.inference import HeaderForwarding
from reference_server.gateway.repository_control import RepositoryControl
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.observability.logs import model_table, terminal_width
from reference_server.observability.server_metrics import HostMetrics
from reference_server.options import (
    ControlMode,
    GrpcOptions,
    HttpOptions,
    LatencyMetrics,
    MetricsOptions,
    ServerOptions,
)
from reference_server.repository.loader import ModelLoader
from reference_server.repository.manager import Repository
from reference_server.repository.polling import RepositoryWatch
from reference_server.scheduling.rate_limiter import RateLimiter
from reference_server.scheduling.response_cache import ResponseCache

log = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000


class Server:
    """One server: `serve` loads the models, opens the ports, and returns after `stop`.

    Or without ports and signals, as a part of another program: `load`, then what `http_handlers`,
    `grpc_methods` and `metrics_handlers` give, then `close`.
    """

    def __init__(self, options: ServerOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._registry = new_registry()
        cache_bytes = options.response_cache_bytes
        self._cache = None if cache_bytes is None else ResponseCache(cache_bytes, self._clock)
        latencies = LatencyMetrics() if options.metrics is None else options.metrics.latencies
        loader = ModelLoader(
            self._clock,
            self._registry,
            auto_complete_config=options.auto_complete_config,
            cache=self._cache,
            quantiles=latencies.quantiles if latencies.summaries else (),
            python_backend=options.python_backend,
            backend_directory=options.backend_directory,
            limiter=None if options.rate_limit is None else RateLimiter(options.rate_limit.limits),
            config_name=options.model_config_name,
        )
        self.model_calls = loader.calls
        self._loop: asyncio.AbstractEventLoop | None = None
        self.repository = Repository(
            options.model_repositories,
            loader,
            options.model_load_threads,
            options.model_load_retries,
            self._wait_for_callbacks,
        )
        self.gateway = Gateway(self.repository, options, self._clock)
        self.control = RepositoryControl(self.repository, options.control_mode)
        self._watch = RepositoryWatch(self.repository.load_all, options.poll_s)
        self._shared_memory = SharedMemory()
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        """Load, listen, and serve until `stop` is called or SIGINT or SIGTERM comes.

        Raises ServerError if the repository cannot be read, a model cannot be loaded (with
        `exit_on_error`), or a port is taken; ExitTimeout if the end takes too long.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
            forks.default_in_forks(number)
        loaded = await asyncio.to_thread(self.load, loop)
        listeners: dict[str, Listener] = {}
        try:
            width = None if self._options.log.file else terminal_width(sys.stderr)
            log.info("%s", model_table(self._rows(), width), extra={"verbatim": True})
            if self._options.exit_on_error and not loaded:
                raise internal("failed to load all models")
            # Metrics first: whoever finds the server ready finds them too.
            if self._options.metrics is not None:
                listeners["metrics service"] = self._metrics_listener(self._options.metrics)
            if self._options.grpc is not None:
                listeners["GRPC service"] = self._grpc_listener(self._options.grpc, loop)
            if self._options.http is not None:
                listeners["HTTP service"] = self._http_listener(self._options.http, loop)
            for listener in listeners.values():
                await listener.open()
            self._keep_ports_from_forks()
            if self._options.control_mode is ControlMode.POLL:
                self._watch.start()
            await self._stopping.wait()
        except BaseException:
            with contextlib.suppress(ExitTimeout):
                await self._shut_down(listeners)
            raise
        await self._shut_down(listeners)

    def _keep_ports_from_forks(self) -> None:
        options = self._options
        for given in (options.metrics, options.grpc, options.http):
            if given is not None:
                forks.listens(given.port)

    def load(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Load what is wanted at the start; False if a model failed. Blocks.

        `loop` is the one on whose thread requests come, and which this thread must not hold up.
        """
        self._loop = loop
        loaded = self._load()
        self.model_calls.connect(
            self.repository, is_explicit=self._options.control_mode is ControlMode.EXPLICIT
        )
        return loaded

    def _load(self) -> bool:
        options = self._options
        if options.control_mode is not ControlMode.EXPLICIT or options.startup_models == ("*",):
            return self.repository.load_all()
        if "*" in options.startup_models:
            raise invalid_arg(
                "Wildcard model name '*' must be the ONLY startup model if specified at all."
            )
        return self.repository.load_named(options.startup_models)

    def _wait_for_callbacks(self) -> None:
        """Return when the loop's callbacks of now have ended; on another thread than the loop's.

        The frontends find a request's model and give it the request within one callback.
        """
        ended = threading.Event()
        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(ended.set)
        except RuntimeError:  # the loop is gone, and all requests with it
            return
        ended.wait()

    def stop(self) -> None:
        """Begin the shutdown; on the loop's thread."""
        self._stopping.set()

    def _signalled(self, number: signal.Signals) -> None:
        log.info("Signal (%d) received.", number)
        self.stop()

    def http_handlers(self, options: HttpOptions, loop: asyncio.AbstractEventLoop) -> HttpHandlers:
        """What answers HTTP requests, on the loop's thread."""
        return HttpHandlers(
            self.gateway,
            self._shared_memory,
            self.control,
            loop,
            self._clock,
            restrictions=options.restricted,
            forwarding=HeaderForwarding(options.forwarded) if options.forwarded else None,
        )

    def _http_listener(self, options: HttpOptions, loop: asyncio.AbstractEventLoop) -> HttpListener:
        return HttpListener(
            "HTTPService",
            options.address,
            options.port,
            self.http_handlers(options, loop).handle,
            reuse_port=options.reuse_port,
            max_body=options.max_input_bytes,
        )

    def grpc_methods(
        self, options: GrpcOptions, loop: asyncio.AbstractEventLoop
    ) -> Mapping[str, Method]:
        """What answers calls, by full names (`/package.Service/Method`), on the loop's thread."""
        return grpc_methods.table(
            self.gateway,
            self._shared_memory,
            self.control,
            loop,
            self._clock,
            restrictions=options.restricted,
            forwarding=HeaderForwarding(options.forwarded) if options.forwarded else None,
        )

    def _grpc_listener(self, options: GrpcOptions, loop: asyncio.AbstractEventLoop) -> GrpcListener:
        return GrpcListener(options, self.grpc_methods(options, loop))

    def metrics_handlers(self, options: MetricsOptions) -> MetricsHandlers:
        """What answers requests at the metrics port, on the loop's thread."""
        host = HostMetrics(self._clock, options.interval_ms * _NS_PER_MS, cpu=options.cpu)
        gateway = MetricsGateway(
            self.repository, self._registry, host, options.latencies, self._cache
        )
        return MetricsHandlers(gateway)

    def _metrics_listener(self, options: MetricsOptions) -> HttpListener:
        handlers = self.metrics_handlers(options)
        return HttpListener("Metrics Service", options.address, options.port, handlers.handle)

    def _rows(self) -> list[tuple[str, str, str]]:
        rows: list[tuple[str, str, str]] = []
        for status in self.repository.statuses():
            shown = f"{status.state.value}: {status.reason}" if status.reason else "READY"
            version = "-" if status.version is None else str(status.version)
            rows.append((status.model, version, shown))
        return rows

    async def _shut_down(self, listeners: Mapping[str, Listener]) -> None:
        timeout_s = self._options.exit_timeout_s
        await shut_down(listeners, self.close, lambda: self.repository.live, timeout_s)

    def close(self) -> None:
        """Answer what was taken, then finalize the models. Blocks for as long as these do."""
        self._watch.stop()
        self.repository.close()
        self.gateway.tracing.close()
        self._shared_memory.close()


# --------------------------------------------------------------------------------------- shutdown

#: The part of the timeout after which models are finalized though requests are in flight: those
#: that have none are then through before one that hangs lets the time run out.
_DRAINING_PART = 0.75
_TELL_EVERY_S = 1.0
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
    draining: float = _DRAINING_PART,
) -> None:
    """Drain the ports, which have names for the log, then finalize the models.

    That begins when `draining` of the timeout is over, whatever is in flight then. All of it shares
    one timeout, and the log tells every second what is still waited for, as Triton's does.

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
    await _done_by(deadline - timeout_s * (1 - draining), tell_connections, drained)
    if answered := drained.done():
        _close(listeners)
    log.info("All models are stopped, unloading models")
    in_time = await _done_by(deadline, tell_models, drained, _in_thread(finalize))
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


async def _done_by(deadline: float, tell: Callable[[], None], *work: asyncio.Future[None]) -> bool:
    """Whether all of `work` is done before the loop's `deadline`; it goes on if it is not."""
    loop = asyncio.get_running_loop()
    while pending := [future for future in work if not future.done()]:
        tell()
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
