"""The handlers of all operations over HTTP. Used on the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from reference_server.codecs import management_json, openapi
from reference_server.codecs.bodies import UNLIMITED, InputLimit
from reference_server.core import gil
from reference_server.core.backlog import Intake
from reference_server.core.errors import Code, ServerError, internal, invalid_arg
from reference_server.core.health import Probe
from reference_server.core.metadata import CudaRegion, SystemRegion
from reference_server.core.ports import Clock
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.frontends.event_loop import CODECS, Background, Mailbox
from reference_server.frontends.http import inference, routes, status_codes
from reference_server.frontends.http.origins import WebOrigins
from reference_server.frontends.http.pages import Page
from reference_server.frontends.http.request import Request
from reference_server.frontends.http.routes import Operation, Route
from reference_server.gateway.forwarding import HeaderForwarding
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.inference import Inferences, deliver
from reference_server.gateway.repository_control import RepositoryControl
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.options import Restriction

log = logging.getLogger(__name__)

#: The methods as Triton's log prints them.
_METHODS = {"GET": 0, "HEAD": 1, "POST": 2, "PUT": 3, "DELETE": 4}

_FORM, _DOCS, _HOME = "/try", "/docs", "/"
#: Operations that reject a wrong method or version with the content type text/plain. For these,
#: Triton sets no content type, so its HTTP library sets text/plain.
_PLAIN = frozenset({Operation.LIVE, Operation.READY, Operation.MODEL_READY, Operation.INFER})
#: Answers one request. Raises ServerError for an error with a JSON body.
_Handler = Callable[[Request, Route], None]


class HttpHandlers:
    """Answers requests by calling the gateway.

    `restrictions` maps a category of operations to the header that these operations require. With
    `page`, there are a form for requests and a page with the models' API, and `/` answers browsers
    with a page of links. `metrics_port` is the port of the live page, and `grpc_port` the port in
    the form's commands for gRPC.
    """

    def __init__(
        self,
        gateway: Gateway,
        shared_memory: SharedMemory,
        control: RepositoryControl,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        restrictions: Mapping[str, Restriction] | None = None,
        forwarding: HeaderForwarding | None = None,
        background: Background | None = None,
        profile: TritonProfile = V2_51,
        limit: InputLimit = UNLIMITED,
        page: bool = False,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        intake: Intake | None = None,
        origins: WebOrigins | None = None,
    ) -> None:
        self._origins = origins or WebOrigins()
        self._limit = limit
        self._pages = {}
        if page:
            ports = {"GRPC_PORT": str(grpc_port or ""), "METRICS_PORT": str(metrics_port or "")}
            self._pages = {
                _FORM: Page("try.html", ports),
                _DOCS: Page("docs.html"),
                _HOME: Page("home.html", ports),
            }
        self._profile = profile
        self._gateway = gateway
        self._shared_memory = shared_memory
        self._control = control
        self._background = background or Background(loop)
        self._required_headers = _required_headers(restrictions or {})
        self._reading = background or Background(loop, CODECS)
        answers = Mailbox(loop, deliver)
        self._codecs = codecs = Background(loop, CODECS) if background is None else background
        self._inference = inference.InferenceHandlers(
            Inferences(
                *(gateway, shared_memory, clock, inference.TRACE_EVENTS),
                *(answers.post, codecs.run, forwarding),
            ),
            *(profile, limit, intake or Intake()),
        )
        self._handlers = self._by_operation()

    def handle(self, request: Request) -> None:
        """Answer `request`, now or when its model has answered."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("HTTP request: %s", _request_line(request))
        known: tuple[_Handler, Route] | None = request.notes.get(self)
        if known is None:
            known = self._route(request)
            if known is None:
                return
            request.notes[self] = known
        handler, route = known
        try:
            handler(request, route)
        except ServerError as error:
            request.reply_error(status_codes.STATUS[error.code], error.message, as_json=True)
        except Exception as error:  # a defect must not leave the client waiting
            log.exception("%s %s", request.method, request.url.decode("latin-1"))
            message = f"{type(error).__name__}: {error}"
            request.reply_error(status_codes.STATUS[Code.INTERNAL], message, as_json=True)

    def _by_operation(self) -> dict[Operation, _Handler]:
        return {
            Operation.LIVE: self._live,
            Operation.READY: self._ready,
            Operation.SERVER_METADATA: self._server_metadata,
            Operation.OPENAPI: self._openapi,
            Operation.MODEL_METADATA: self._model_metadata,
            Operation.MODEL_READY: self._model_ready,
            Operation.MODEL_CONFIG: self._model_config,
            Operation.MODEL_STATISTICS: self._model_statistics,
            Operation.ALL_STATISTICS: self._all_statistics,
            Operation.INFER: self._inference.infer,
            Operation.GENERATE: self._inference.generate,
            Operation.GENERATE_STREAM: self._inference.generate_stream,
            Operation.LOG_SETTINGS: self._log_settings,
            Operation.TRACE_SETTINGS: self._trace_settings,
            Operation.SYSTEM_REGION_STATUS: self._system_region_status,
            Operation.SYSTEM_REGION_REGISTER: self._system_region_register,
            Operation.SYSTEM_REGION_UNREGISTER: self._system_region_unregister,
            Operation.CUDA_REGION_STATUS: self._cuda_region_status,
            Operation.CUDA_REGION_REGISTER: self._cuda_region_register,
            Operation.CUDA_REGION_UNREGISTER: self._cuda_region_unregister,
            Operation.REPOSITORY_INDEX: self._repository_index,
            Operation.REPOSITORY_LOAD: self._repository_load,
            Operation.REPOSITORY_UNLOAD: self._repository_unload,
        }

    def _route(self, request: Request) -> tuple[_Handler, Route] | None:
        """Return the handler for the request's head; None if the request is already answered."""
        if self._origins.refuses(request):
            return None
        route = routes.match(request.url)
        if route is not None and route.operation is Operation.OPENAPI and not self._pages:
            route = None  # Triton has no such document
        if route is None:
            path = routes.path_of(request.url)
            page = self._pages.get(path)
            # Triton has no page at `/`: clients that do not ask for HTML get its error.
            if path == _HOME and "text/html" not in (request.header(b"accept") or ""):
                page = None
            if page is not None and request.method == "GET":
                page.reply(request)
            else:
                _log_error(request, 404)
                request.reply_error(status_codes.NOT_FOUND, "Not Found", as_json=False)
            return None
        operation = route.operation
        # Checked before the method, as in Triton.
        required = self._required_headers.get(operation)
        if required is not None and request.header(required[0]) != required[1].value:
            message = f"This API is restricted, expecting header '{required[1].key}'"
            request.reply_error(status_codes.FORBIDDEN, message, as_json=False)
            return None
        as_json = operation not in _PLAIN
        if request.method not in operation.methods:
            request.reply_error(status_codes.NOT_ALLOWED, "Method Not Allowed", as_json=as_json)
            return None
        if route.fault:
            request.reply_error(status_codes.BAD_REQUEST, route.fault, as_json=as_json)
            return None
        return self._handlers[operation], route

    # -- health, metadata, configuration, statistics

    def _live(self, request: Request, route: Route) -> None:
        try:
            live = self._gateway.live()
        except ServerError:  # health replies have no text
            live = False
        _reply_healthy(request, live)

    def _ready(self, request: Request, route: Route) -> None:
        try:
            probes = self._gateway.ready()
        except ServerError:  # health replies have no text
            probes = None
        self._probe(probes, lambda ready: _reply_healthy(request, ready))

    def _server_metadata(self, request: Request, route: Route) -> None:
        request.reply(
            status_codes.OK, [management_json.server_metadata(self._gateway.server_metadata())]
        )

    def _openapi(self, request: Request, route: Route) -> None:
        def encoded() -> bytes:
            return openapi.encode_document(
                self._gateway.server_metadata(), self._gateway.signatures()
            )

        self._reply_later(request, encoded, self._codecs)

    def _model_metadata(self, request: Request, route: Route) -> None:
        metadata = self._gateway.model_metadata(route.model, route.version)
        request.reply(status_codes.OK, [management_json.model_metadata(metadata)])

    def _model_ready(self, request: Request, route: Route) -> None:
        try:
            probes = self._gateway.model_ready(route.model, route.version)
        except ServerError as error:
            as_json = error.code is not Code.NOT_FOUND
            status = status_codes.STATUS[error.code]
            request.reply_error(status, error.message, as_json=as_json)
            return

        def reply(ready: bool) -> None:
            if ready:
                request.reply(status_codes.OK, content_type=None)
            else:
                request.reply_error(
                    status_codes.BAD_REQUEST, "Model version not ready", as_json=False
                )

        self._probe(probes, reply)

    def _probe(self, probes: Sequence[Probe] | None, reply: Callable[[bool], None]) -> None:
        """Reply with the result of all probes, which may block."""
        if probes:
            self._background.run(
                lambda: all(probe() for probe in probes), reply, lambda _: reply(False)
            )
        else:
            reply(probes is not None)

    def _model_config(self, request: Request, route: Route) -> None:
        config = self._gateway.model_config(route.model, route.version)
        request.reply(status_codes.OK, [config.encode()])

    def _model_statistics(self, request: Request, route: Route) -> None:
        snapshots = self._gateway.statistics(route.model, route.version)
        request.reply(status_codes.OK, [management_json.statistics(snapshots)])

    def _all_statistics(self, request: Request, route: Route) -> None:
        def encoded() -> bytes:
            return management_json.statistics(self._gateway.statistics())

        if self._gateway.has_many():
            self._reply_later(request, encoded, self._codecs)
        else:
            request.reply(status_codes.OK, [encoded()])

    # -- settings: GET reads, POST changes and reads

    def _log_settings(self, request: Request, route: Route) -> None:
        log_settings = self._gateway.logging

        def changed(body: memoryview) -> bytes:
            settings = log_settings.update(management_json.read_log_settings(body, self._profile))
            return management_json.encode_log_settings(settings)

        if request.method == "GET":
            settings = log_settings.read()
            request.reply(status_codes.OK, [management_json.encode_log_settings(settings)])
        else:
            self._reply_to_json(request, changed)

    def _trace_settings(self, request: Request, route: Route) -> None:
        tracing = self._gateway.tracing

        def changed(body: memoryview) -> bytes:
            changes = management_json.read_trace_settings(body, self._profile)
            return management_json.encode_trace_settings(tracing.update(changes, route.model))

        if request.method == "GET":
            settings = tracing.read(route.model)
            request.reply(status_codes.OK, [management_json.encode_trace_settings(settings)])
        else:
            self._reply_to_json(request, changed)

    # -- shared memory

    def _system_region_status(self, request: Request, route: Route) -> None:
        regions = self._shared_memory.regions(SystemRegion, route.name)
        request.reply(status_codes.OK, [management_json.system_status(regions)])

    def _system_region_register(self, request: Request, route: Route) -> None:
        self._shared_memory.check_allowed()  # before the body is parsed
        _check_name(route, "system")

        def registered(body: memoryview) -> bytes:
            given = management_json.system_registration(body, self._profile)
            self._shared_memory.register_system(
                route.name, given.key, given.byte_size, given.offset
            )
            return b""

        self._reply_to_json(request, registered)

    def _system_region_unregister(self, request: Request, route: Route) -> None:
        self._shared_memory.unregister(SystemRegion, route.name)
        request.reply(status_codes.OK)

    def _cuda_region_status(self, request: Request, route: Route) -> None:
        regions = self._shared_memory.regions(CudaRegion, route.name)
        request.reply(status_codes.OK, [management_json.cuda_status(regions)])

    def _cuda_region_register(self, request: Request, route: Route) -> None:
        self._shared_memory.check_allowed()
        _check_name(route, "cuda")

        def registered(body: memoryview) -> bytes:
            given = management_json.cuda_registration(body, self._profile)
            self._shared_memory.register_cuda(
                route.name, given.raw_handle, given.device_id, given.byte_size
            )
            return b""

        self._reply_to_json(request, registered)

    def _cuda_region_unregister(self, request: Request, route: Route) -> None:
        self._shared_memory.unregister(CudaRegion, route.name)
        request.reply(status_codes.OK)

    # -- repository control: blocks, and so runs in the background

    def _repository_index(self, request: Request, route: Route) -> None:
        body = self._json(request)

        def encoded() -> bytes:
            ready_only = management_json.index_request(body, self._profile)
            # Unlike load and unload, this operation ignores the repository's name.
            return management_json.index(
                row.fields for row in self._control.index(ready_only=ready_only)
            )

        self._reply_later(request, encoded, self._reading)

    def _repository_load(self, request: Request, route: Route) -> None:
        body = self._json(request)

        def loaded() -> bytes:
            parameters = management_json.load_parameters(body, self._profile)
            self._control.load(route.model, parameters, repository=route.name)
            return b""

        self._reply_later(request, loaded)

    def _repository_unload(self, request: Request, route: Route) -> None:
        body = self._json(request)

        def unloaded() -> bytes:
            dependents = management_json.unload_dependents(body, self._profile)
            self._control.unload(route.model, unload_dependents=dependents, repository=route.name)
            return b""

        self._reply_later(request, unloaded)

    def _json(self, request: Request) -> memoryview:
        """Return the JSON body of a request. Raises ServerError if it is too large."""
        self._limit.check_json(request.size)
        return request.body

    def _reply_to_json(self, request: Request, work: Callable[[memoryview], bytes]) -> None:
        """Reply with the result of `work` on the body; in the background if the body is long."""
        body = self._json(request)
        if gil.is_long(json_bytes=len(body)):
            self._reply_later(request, lambda: work(body))
        else:
            answer = work(body)
            request.reply(status_codes.OK, [answer] if answer else ())

    def _reply_later(
        self, request: Request, work: Callable[[], bytes], background: Background | None = None
    ) -> None:
        """Run `work` in the background, and reply with its result or its error."""

        def done(body: bytes) -> None:
            request.reply(status_codes.OK, [body] if body else ())

        def failed(error: Exception) -> None:
            if not isinstance(error, ServerError):  # a defect must not leave the client waiting
                log.error("%s %s", request.method, request.url, exc_info=error)
                error = internal(f"{type(error).__name__}: {error}")
            request.reply_error(status_codes.STATUS[error.code], error.message, as_json=True)

        (background or self._background).run(work, done, failed)


def _request_line(request: Request) -> str:
    """Return method and path as in Triton's verbose lines."""
    path = request.url.partition(b"?")[0].decode("latin-1")
    return f"{_METHODS.get(request.method, -1)} {path}"


def _log_error(request: Request, status: int) -> None:
    """Write the verbose line about a request for which there is no operation."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("HTTP error: %s - %d", _request_line(request), status)


def _required_headers(
    restrictions: Mapping[str, Restriction],
) -> dict[Operation, tuple[bytes, Restriction]]:
    """Return the header, in lower case, that each restricted operation requires."""
    return {
        operation: (restriction.key.lower().encode(), restriction)
        for operation in Operation
        if (restriction := restrictions.get(operation.category)) is not None
    }


def _reply_healthy(request: Request, healthy: bool) -> None:
    request.reply(
        status_codes.OK if healthy else status_codes.STATUS[Code.INVALID_ARG], content_type=None
    )


def _check_name(route: Route, kind: str) -> None:
    if not route.name:
        raise invalid_arg(f"'region name' is necessary to register {kind} shared memory region")
