"""The composition root: creates all parts of the server, starts them in order, shuts them down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Mapping, Sequence

from reference_server.backends.python_host.inline import InlineInstance
from reference_server.codecs.bodies import InputLimit
from reference_server.core import forks
from reference_server.core.backlog import Intake
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.ports import Clock, SystemClock
from reference_server.core.telemetry import Sample
from reference_server.frontends.event_loop import Background, LoopIterationEnds
from reference_server.frontends.grpc import methods as grpc_methods
from reference_server.frontends.grpc.calls import Method
from reference_server.frontends.grpc.transport import GrpcListener
from reference_server.frontends.http.asgi import BodyLimits
from reference_server.frontends.http.handlers import HttpHandlers
from reference_server.frontends.http.listener import HttpListener
from reference_server.frontends.http.origins import WebOrigins
from reference_server.frontends.http.pages import MetricsHandlers
from reference_server.gateway.forwarding import HeaderForwarding
from reference_server.gateway.gateway import Gateway, MetricsGateway, new_registry
from reference_server.gateway.repository_control import RepositoryControl
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.gateway.status import StatusGateway
from reference_server.observability.incidents import ENDED, LONG, ExecutionWatch, Incidents, LoopLag
from reference_server.observability.logs import LogTail, info_stream, model_table, terminal_width
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.observability.server_metrics import HostMetrics
from reference_server.options import (
    ControlMode,
    GrpcOptions,
    HttpOptions,
    MetricsOptions,
    ServerOptions,
)
from reference_server.repository.loader import ModelLoader
from reference_server.repository.manager import Repository
from reference_server.repository.polling import RepositoryWatch
from reference_server.scheduling.response_cache import ResponseCache
from reference_server.shutdown import ExitTimeout, Listener, exit_after, shut_down

log = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000
_HTTP = "HTTP service"
#: Addresses that listen on all networks of the machine.
_EVERYWHERE = ("0.0.0.0", "::", "")


class Server:
    """One server. `serve` loads the models, opens the ports, and returns after `stop`.

    Inside another program, without ports and signals: call `load`, use `http_handlers`,
    `grpc_methods` and `metrics_handlers`, then call `close`. Servers that share the metrics of
    models get the same `registry`.
    """

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock | None = None,
        registry: MetricRegistry | None = None,
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._registry = registry or new_registry()
        cache_bytes = options.response_cache_bytes
        self._cache = None if cache_bytes is None else ResponseCache(cache_bytes, self._clock)
        self._loop_ends = LoopIterationEnds()
        self._incidents = Incidents(time.monotonic)
        self._intake = Intake(options.most_request_bytes)
        self._executions = ExecutionWatch(
            self._clock, options.execution_warning_s, InlineInstance._run.__code__
        )
        self._lag = LoopLag(self._run_periodic_work, self._executions.executing_since)
        loader = ModelLoader(
            self._clock, self._registry, *(options, self._loop_ends, self._cache, self._executions)
        )
        self.model_calls = loader.calls
        self._portability = loader.portability
        self._loop: asyncio.AbstractEventLoop | None = None
        self.repository = Repository(
            options.model_repositories,
            loader,
            options.model_load_threads,
            options.model_load_retries,
            self._wait_for_callbacks,
            namespaced=options.model_namespacing,
        )
        self.gateway = Gateway(self.repository, options, self._clock)
        self.control = RepositoryControl(
            self.repository,
            options.control_mode,
            self.gateway.check_ready,
            options.profile,
            accepts_files=options.file_override,
        )
        self._watch = RepositoryWatch(self.repository.load_all, options.poll_s)
        self._shared_memory = SharedMemory(
            allowed=options.client_shared_memory, profile=options.profile
        )
        # The pages use fields that old releases of Triton do not have.
        self._shows_pages = options.profile.newer_metrics
        self._log_tail = LogTail()
        self._status: StatusGateway | None = None
        self._stopping = asyncio.Event()
        self._has_failed = False

    async def serve(self) -> None:
        """Load the models, open the ports, and serve until `stop`, SIGINT or SIGTERM.

        Without `exit_on_error`, a server whose repository cannot be read serves the operations that
        need no model.

        Raises:
            ServerError: the repository cannot be read, a model cannot be loaded (with
                `exit_on_error`), or a port is in use.
            ExitTimeout: the shutdown took longer than its timeout.
        """
        loop = asyncio.get_running_loop()
        if self._options.metrics is not None and self._options.metrics.page_log:
            self._log_tail.open()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
            forks.default_in_forks(number)
        listeners: dict[str, Listener] = {}
        try:
            await self.load_on(loop)
            # Metrics first, so that they are available as soon as the server is ready.
            if self._options.metrics is not None:
                listeners["metrics service"] = self.metrics_listener(self._options.metrics)
            if self._options.grpc is not None:
                listeners["GRPC service"] = self.grpc_listener(self._options.grpc, loop)
            if self._options.http is not None:
                listeners[_HTTP] = self.http_listener(self._options.http, loop)
            for listener in listeners.values():
                await listener.open()
            self._announce_ports()
            self._announce_pages()
            if self._options.control_mode is ControlMode.POLL and not self._has_failed:
                self._watch.start()
            await self._stopping.wait()
        except BaseException:
            with contextlib.suppress(ExitTimeout):
                await self.shut_down(listeners)
            raise
        await self.shut_down(listeners)

    def _announce_ports(self) -> None:
        """Warn about ports that other machines can reach; close all ports in forked processes."""
        options = self._options
        fronts = {"HTTP": options.http, "gRPC": options.grpc, "metrics": options.metrics}
        opened = [
            f"{name} {front.port}"
            for name, front in fronts.items()
            if front is not None and front.address in _EVERYWHERE
        ]
        for front in fronts.values():
            if front is not None:
                forks.close_port_in_forks(front.port)
        if opened:
            log.warning(
                "Open to all networks of this machine: %s. Any client that reaches these ports may "
                "call every operation that is not restricted. See docs/security.md.",
                ", ".join(opened),
            )

    def _announce_pages(self) -> None:
        """Log the addresses of the pages for browsers."""
        http, metrics = self._options.http, self._options.metrics
        pages = []
        if metrics is not None and metrics.page:
            pages.append(f"live page {_url(metrics.address, metrics.port)}/")
        if http is not None and http.page:
            url = _url(http.address, http.port)
            pages += [f"request form {url}/try", f"API {url}/docs"]
        if pages and self._shows_pages:
            log.info("Pages: %s", ", ".join(pages))

    async def load_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call `load` on another thread, and monitor the loop from then on.

        Raises:
            ServerError: see `serve`.
        """
        await self._load_on(loop)
        self._lag.start(loop)

    async def _load_on(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loaded = await asyncio.to_thread(self.load, loop)
        except ServerError as error:
            self._has_failed = True
            if self._options.exit_on_error:
                raise
            log.error("%s", error.described())
            self.gateway.failed()
            return
        stream = info_stream(splits=self._options.profile.splits_log)
        width = None if self._options.log.file else terminal_width(stream)
        log.info("%s", model_table(self._rows(), width), extra={"verbatim": True})
        if self._options.exit_on_error and not loaded:
            raise internal("failed to load all models")

    def load(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Load the startup models. Blocks.

        Args:
            loop: the event loop that will serve the requests. Must not run on the calling thread.

        Returns:
            False if a model failed to load.
        """
        self._loop = loop
        self._loop_ends.begin(loop)
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
        """Wait until the loop's current callbacks have ended. Must not run on the loop's thread.

        The frontends look up a model and submit the request to it within one callback. So after
        this wait, no callback can still submit to a model that was unpublished before the wait.
        """
        ended = threading.Event()
        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(ended.set)
        except RuntimeError:  # the loop is closed: there are no requests
            return
        ended.wait()

    def stop(self) -> None:
        """Start the shutdown. Call on the loop's thread."""
        self._stopping.set()

    def _signalled(self, number: signal.Signals) -> None:
        log.info("Signal (%d) received.", number)
        if not self._stopping.is_set():
            exit_after(self._options.exit_timeout_s)
        self.stop()

    def _forwarding(self, pattern: str) -> HeaderForwarding | None:
        if not pattern:
            return None
        return HeaderForwarding(
            pattern, refuses_reserved=self._options.profile.newer_request_checks
        )

    def http_handlers(self, options: HttpOptions, loop: asyncio.AbstractEventLoop) -> HttpHandlers:
        """Return the handlers of HTTP requests. They run on the loop's thread."""
        grpc, metrics = self._options.grpc, self._options.metrics
        return HttpHandlers(
            *(self.gateway, self._shared_memory, self.control, loop, self._clock),
            restrictions=options.restricted,
            forwarding=self._forwarding(options.forwarded),
            profile=self._options.profile,
            limit=InputLimit(options.max_input_bytes),
            page=options.page and self._shows_pages,
            grpc_port=grpc.port if grpc else None,
            metrics_port=metrics.port if metrics and metrics.page else None,
            intake=self._intake,
            origins=WebOrigins(self._options.web, options.address),
        )

    def body_limits(self, options: HttpOptions) -> BodyLimits:
        """Return the limits of bodies for connections that another server (ASGI) accepts."""
        return BodyLimits(options.max_input_bytes, self._intake, self._options.time_limits)

    def http_listener(self, options: HttpOptions, loop: asyncio.AbstractEventLoop) -> HttpListener:
        return HttpListener(
            *("HTTPService", options.address, options.port),
            self.http_handlers(options, loop).handle,
            reuse_port=options.reuse_port,
            max_input=options.max_input_bytes,
            limits=self._options.time_limits,
            report=self._incidents.of("http"),
            most_connections=self._options.most_connections,
            intake=self._intake,
            closes_open=self._options.exit_closes_idle,
        )

    def grpc_methods(
        self, options: GrpcOptions, loop: asyncio.AbstractEventLoop
    ) -> Mapping[str, Method]:
        """Return the gRPC methods by full name (`/package.Service/Method`)."""
        return grpc_methods.table(
            self.gateway,
            self._shared_memory,
            self.control,
            loop,
            self._clock,
            restrictions=options.restricted,
            forwarding=self._forwarding(options.forwarded),
            profile=self._options.profile,
            most_responses=options.max_response_pool_size,
        )

    def grpc_listener(self, options: GrpcOptions, loop: asyncio.AbstractEventLoop) -> GrpcListener:
        methods = self.grpc_methods(options, loop)
        return GrpcListener(
            *(options, methods, self._options.time_limits, self._incidents.of("grpc")),
            *(self._options.most_connections, self._intake),
        )

    def metrics_gateway(self, options: MetricsOptions) -> MetricsGateway:
        """Return the collector of all metrics."""
        return MetricsGateway(
            self.repository,
            self._registry,
            self._host_metrics(options),
            options.latencies,
            self._cache,
            self._options.profile,
            self._server_samples,
        )

    def _host_metrics(self, options: MetricsOptions) -> HostMetrics:
        return HostMetrics(self._clock, options.interval_ms * _NS_PER_MS, cpu=options.cpu)

    def metrics_handlers(self, options: MetricsOptions) -> MetricsHandlers:
        """Return the handlers of the metrics port. They run on the loop's thread."""
        if options.page and self._shows_pages:
            http = self._options.http
            self._status = StatusGateway(
                *(self.repository, self._registry, self.gateway.server_metadata(), self._clock),
                http_port=None if http is None else http.port,
                log=self._log_tail if options.page_log else None,
                portability=self._portability,
                host=self._host_metrics(options),
            )
        assert self._loop is not None, "load() was not called"
        return MetricsHandlers(
            self.metrics_gateway(options),
            Background(self._loop, most=1),
            *(self._status, WebOrigins(self._options.web, options.address)),
        )

    def _server_samples(self) -> Mapping[str, Sequence[Sample]]:
        return {
            ENDED.name: self._incidents.samples(),
            LONG.name: self._executions.samples(),
            **self._lag.samples(),
            **self.gateway.tracing.samples(),
        }

    def _run_periodic_work(self) -> None:
        self._incidents.log_pending()
        self._executions.look()
        if self._status is not None:
            self._status.sample()
        self._shared_memory.release_buffers()

    def metrics_listener(self, options: MetricsOptions) -> HttpListener:
        handlers = self.metrics_handlers(options)
        return HttpListener(
            *("Metrics Service", options.address, options.port),
            handlers.handle,
            limits=self._options.time_limits,
            report=self._incidents.of("metrics"),
            most_connections=self._options.most_connections,
            intake=self._intake,
        )

    def _rows(self) -> list[tuple[str, str, str]]:
        rows: list[tuple[str, str, str]] = []
        for status in self.repository.statuses():
            shown = f"{status.state.value}: {status.reason}" if status.reason else "READY"
            version = "-" if status.version is None else str(status.version)
            rows.append((status.model, version, shown))
        return rows

    async def shut_down(self, listeners: Mapping[str, Listener]) -> None:
        """Drain the ports, unload the models, release everything else. Raises ExitTimeout."""
        first = {name: port for name, port in listeners.items() if name == _HTTP}
        last = {name: port for name, port in listeners.items() if name != _HTTP}
        models = None if self._has_failed else self
        await shut_down(first, models, last, self._options.exit_timeout_s)
        self._lag.stop()
        self._incidents.log_pending()
        self._release()

    def refuse(self) -> None:
        """Reject new requests."""
        self.gateway.stopping()
        self.repository.refuse()

    def in_flight(self) -> Sequence[tuple[str, int, int]]:
        """Return model, version and request count of each version with requests in flight."""
        return self.repository.in_flight()

    @property
    def live(self) -> int:
        """The number of loaded versions that are not finalized."""
        return self.repository.live

    def unload(self) -> None:
        """Finish the accepted requests, then finalize the models. Blocks until that is done."""
        self._watch.stop()
        self.repository.close()

    def close(self) -> None:
        """Unload the models, then release everything else. Blocks."""
        self.unload()
        self._release()

    def _release(self) -> None:
        self._log_tail.close()
        self.gateway.tracing.close()
        self._shared_memory.close()


def _url(address: str, port: int) -> str:
    """Return the base URL of a listener, for a browser on this machine."""
    host = "localhost" if address in _EVERYWHERE else f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}"
