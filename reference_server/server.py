"""The composition root: builds the rooms, opens them in order, drains and closes them.

The only module that knows all rooms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Sequence
from typing import Protocol

from reference_server.core.clock import Clock, SystemClock
from reference_server.core.errors import internal, invalid_arg
from reference_server.fronts.aside import Aside
from reference_server.fronts.grpc import inference as grpc_inference
from reference_server.fronts.grpc import methods as grpc_methods
from reference_server.fronts.grpc import repository as grpc_repository
from reference_server.fronts.grpc import restricted as grpc_restricted
from reference_server.fronts.grpc import settings as grpc_settings
from reference_server.fronts.grpc import shared_memory as grpc_shared_memory
from reference_server.fronts.grpc.transport import GrpcListener
from reference_server.fronts.http import generate as http_generate
from reference_server.fronts.http import repository as http_repository
from reference_server.fronts.http import settings as http_settings
from reference_server.fronts.http import shared_memory as http_shared_memory
from reference_server.fronts.http.forwarding import HeaderForwarding
from reference_server.fronts.http.handlers import HttpHandlers
from reference_server.fronts.http.listener import HttpListener
from reference_server.fronts.http.restricted import Gatekeeper
from reference_server.fronts.metrics.handlers import MetricsHandlers
from reference_server.gateway.control import RepositoryControl
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.metrics import MetricsGateway, new_registry
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.observability import tables
from reference_server.observability.host_metrics import HostMetrics
from reference_server.options import (
    ControlMode,
    GrpcOptions,
    HttpOptions,
    MetricsOptions,
    ServerOptions,
)
from reference_server.repository.loader import ModelLoader
from reference_server.repository.manager import Repository
from reference_server.repository.watch import Watch

log = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000


class Listener(Protocol):
    """A port: opened, told to take nothing more, drained, closed; in this order."""

    async def open(self) -> None:
        """Listen. Raises ServerError if the port is taken."""

    def stop_accepting(self) -> None:
        """Take no new work; what is in flight goes on."""

    async def drained(self) -> None:
        """Return when nothing is in flight."""

    def close(self) -> None:
        """Give up the port."""


class Server:
    """One server: `serve` loads the models, opens the ports, and returns after `stop`."""

    def __init__(self, options: ServerOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._registry = new_registry()
        loader = ModelLoader(
            self._clock, self._registry, auto_complete_config=options.auto_complete_config
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._repository = Repository(
            options.model_repositories,
            loader,
            options.model_load_threads,
            self._wait_for_callbacks,
        )
        self._gateway = Gateway(self._repository, options, self._clock)
        self._control = RepositoryControl(self._repository, options.control_mode)
        self._watch = Watch(self._repository, options.poll_s)
        self._shared_memory = SharedMemory()
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        """Load, listen, and serve until `stop` is called or SIGINT or SIGTERM comes.

        Raises ServerError if the repository cannot be read, a model cannot be loaded (with
        `exit_on_error`), or a port is taken.
        """
        loop = self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        loaded = await asyncio.to_thread(self._load)
        listeners: list[Listener] = []
        try:
            log.info("%s", tables.models(self._rows()), extra={"verbatim": True})
            if self._options.exit_on_error and not loaded:
                raise internal("failed to load all models")
            # Metrics first: whoever finds the server ready finds them too.
            if self._options.metrics is not None:
                listeners.append(self._metrics_listener(self._options.metrics))
            if self._options.grpc is not None:
                listeners.append(self._grpc_listener(self._options.grpc, loop))
            if self._options.http is not None:
                listeners.append(self._http_listener(self._options.http, loop))
            for listener in listeners:
                await listener.open()
            if self._options.control_mode is ControlMode.POLL:
                self._watch.start()
            await self._stopping.wait()
        finally:
            await self._shut_down(listeners)

    def _load(self) -> bool:
        """Load what is wanted at the start; False if a model failed."""
        options = self._options
        if options.control_mode is not ControlMode.EXPLICIT or options.startup_models == ("*",):
            return self._repository.load_all()
        if "*" in options.startup_models:
            raise invalid_arg(
                "Wildcard model name '*' must be the ONLY startup model if specified at all."
            )
        return self._repository.load_named(options.startup_models)

    def _wait_for_callbacks(self) -> None:
        """Return when the loop's callbacks of now have ended; on another thread than the loop's.

        The fronts find a request's model and give it the request within one callback.
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

    def _http_listener(self, options: HttpOptions, loop: asyncio.AbstractEventLoop) -> HttpListener:
        handlers = HttpHandlers(
            self._gateway,
            self._shared_memory,
            loop,
            self._clock,
            http_shared_memory.handlers(self._shared_memory),
            http_settings.handlers(self._gateway.logging, self._gateway.tracing),
            http_generate.handlers(self._gateway, loop, self._clock),
            http_repository.handlers(self._control, Aside(loop)),
            gatekeeper=Gatekeeper(options.restricted),
            forwarding=HeaderForwarding(options.forwarded) if options.forwarded else None,
        )
        return HttpListener(
            "HTTPService",
            options.address,
            options.port,
            handlers.handle,
            reuse_port=options.reuse_port,
            max_body=options.max_input_bytes,
        )

    def _grpc_listener(self, options: GrpcOptions, loop: asyncio.AbstractEventLoop) -> GrpcListener:
        table = grpc_methods.table(
            self._gateway,
            grpc_inference.methods(self._gateway, self._shared_memory, loop, self._clock),
            grpc_shared_memory.methods(self._shared_memory),
            grpc_settings.methods(self._gateway.logging, self._gateway.tracing),
            grpc_repository.methods(self._control, Aside(loop)),
        )
        guarded = grpc_restricted.guarded(table, options.restricted)
        return GrpcListener(options, guarded, grace_s=self._options.exit_timeout_s)

    def _metrics_listener(self, options: MetricsOptions) -> HttpListener:
        host = HostMetrics(self._clock, options.interval_ms * _NS_PER_MS, cpu=options.cpu)
        handlers = MetricsHandlers(MetricsGateway(self._repository, self._registry, host))
        return HttpListener("Metrics Service", options.address, options.port, handlers.handle)

    def _rows(self) -> list[tuple[str, str, str]]:
        rows: list[tuple[str, str, str]] = []
        for status in self._repository.statuses():
            shown = f"{status.state.value}: {status.reason}" if status.reason else "READY"
            version = "-" if status.version is None else str(status.version)
            rows.append((status.model, version, shown))
        return rows

    async def _shut_down(self, listeners: Sequence[Listener]) -> None:
        """Answer what is in flight, within the exit timeout, then finalize the models."""
        for listener in listeners:
            listener.stop_accepting()
        drained = asyncio.gather(*(listener.drained() for listener in listeners))
        try:
            await asyncio.wait_for(drained, self._options.exit_timeout_s)
        except asyncio.TimeoutError:
            log.error(
                "Exit timeout of %g s expired with requests in flight",
                self._options.exit_timeout_s,
            )
        for listener in listeners:
            listener.close()
        await self._close_models()

    async def _close_models(self) -> None:
        """Finalize the models, but do not wait for ever for one that hangs."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()

        def close() -> None:
            self._watch.stop()
            self._repository.close()
            self._gateway.tracing.close()
            self._shared_memory.close()
            with contextlib.suppress(RuntimeError):  # too late: the loop is gone
                loop.call_soon_threadsafe(closed.set)

        # A daemon: it must not keep the process, as a thread of the loop's own pool would.
        threading.Thread(target=close, name="close", daemon=True).start()
        try:
            await asyncio.wait_for(closed.wait(), self._options.exit_timeout_s)
        except asyncio.TimeoutError:
            log.error("Exit timeout expired. Exiting immediately.")
