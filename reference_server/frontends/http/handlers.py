"""What each operation answers over HTTP. Everything here runs on the loop's thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from reference_server.codecs import compression, infer_request, infer_response, model_json
from reference_server.codecs.infer_options import ResponseForm
from reference_server.core.errors import Code, ServerError, internal, unsupported
from reference_server.core.ports import Clock
from reference_server.core.request import RequestTrace
from reference_server.core.response import InferResponse
from reference_server.frontends.aside import Aside
from reference_server.frontends.forwarding import HeaderForwarding
from reference_server.frontends.http import errors, routes
from reference_server.frontends.http.heads import Header
from reference_server.frontends.http.request import Request
from reference_server.frontends.http.restricted import Gatekeeper
from reference_server.frontends.http.routes import Operation, Route
from reference_server.frontends.mailbox import Mailbox
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.shared_memory import RegionLease, SharedMemory
from reference_server.repository.versions import ServedModel

log = logging.getLogger(__name__)

_BINARY = b"application/octet-stream"
_JSON = b"application/json"
#: Operations that refuse a method in plain text: Triton leaves the type to its HTTP library.
_PLAIN = frozenset({Operation.LIVE, Operation.READY, Operation.MODEL_READY, Operation.INFER})
#: Answers one request; raises ServerError where the answer is an error with a JSON body.
Handler = Callable[[Request, Route], None]


class HttpHandlers:
    """Answers requests by asking the gateway.

    `subjects` are the tables of the other handler modules: who answers which operations.
    """

    def __init__(
        self,
        gateway: Gateway,
        shared_memory: SharedMemory,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *subjects: Mapping[Operation, Handler],
        gatekeeper: Gatekeeper | None = None,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._gatekeeper = gatekeeper or Gatekeeper({})
        self._forwarding = forwarding
        self._gateway = gateway
        self._shared_memory = shared_memory
        self._clock = clock
        self._decoder = infer_request.InferRequestDecoder()
        self._aside = Aside(loop)
        self._answers: Mailbox[tuple[_InferExchange, InferResponse]] = Mailbox(
            loop, lambda answer: answer[0].finish(answer[1])
        )
        self._handlers: dict[Operation, Handler] = {
            Operation.LIVE: self._live,
            Operation.READY: self._ready,
            Operation.SERVER_METADATA: self._server_metadata,
            Operation.MODEL_METADATA: self._model_metadata,
            Operation.MODEL_READY: self._model_ready,
            Operation.MODEL_CONFIG: self._model_config,
            Operation.MODEL_STATISTICS: self._model_statistics,
            Operation.ALL_STATISTICS: self._all_statistics,
            Operation.INFER: self._infer,
        }
        for subject in subjects:
            self._handlers.update(subject)

    def handle(self, request: Request) -> None:
        """Answer `request`, now or when its model has answered."""
        route = routes.match(request.url)
        if route is None:
            request.reply_error(errors.NOT_FOUND, "Not Found", as_json=False)
            return
        operation = route.operation
        if not self._gatekeeper.lets_in(request, operation):
            return
        if not operation.allows(request.method):
            request.reply_error(
                errors.NOT_ALLOWED, "Method Not Allowed", as_json=operation not in _PLAIN
            )
            return
        try:
            self._handlers[operation](request, route)
        except ServerError as error:
            request.reply_error(errors.STATUS[error.code], error.message, as_json=True)
        except Exception as error:  # a defect of ours must not leave the client waiting
            log.exception("%s %s", request.method, request.url.decode("latin-1"))
            message = f"{type(error).__name__}: {error}"
            request.reply_error(errors.STATUS[Code.INTERNAL], message, as_json=True)

    def _live(self, request: Request, route: Route) -> None:
        _reply_health(request, healthy=self._gateway.live())

    def _ready(self, request: Request, route: Route) -> None:
        _reply_health(request, healthy=self._gateway.ready())

    def _server_metadata(self, request: Request, route: Route) -> None:
        request.reply(errors.OK, [model_json.server_metadata(self._gateway.server_metadata())])

    def _model_metadata(self, request: Request, route: Route) -> None:
        metadata = self._gateway.model_metadata(route.model, route.version())
        request.reply(errors.OK, [model_json.model_metadata(metadata)])

    def _model_ready(self, request: Request, route: Route) -> None:
        try:
            questions = self._gateway.model_ready(route.model, route.version())
        except ServerError as error:
            request.reply_error(errors.STATUS[error.code], error.message, as_json=False)
            return

        def reply(ready: bool) -> None:
            if ready:
                request.reply(errors.OK, content_type=None)
            else:
                request.reply_error(errors.BAD_REQUEST, "Model version not ready", as_json=False)

        if questions:
            asked = questions
            self._aside.run(
                lambda: all(ask() for ask in asked), reply, lambda _: reply(ready=False)
            )
        else:
            reply(questions is not None)

    def _model_config(self, request: Request, route: Route) -> None:
        config = self._gateway.model_config(route.model, route.version())
        request.reply(errors.OK, [config.encode()])

    def _model_statistics(self, request: Request, route: Route) -> None:
        snapshots = self._gateway.statistics(route.model, route.version())
        request.reply(errors.OK, [model_json.statistics(snapshots)])

    def _all_statistics(self, request: Request, route: Route) -> None:
        request.reply(errors.OK, [model_json.statistics(self._gateway.statistics())])

    def _infer(self, request: Request, route: Route) -> None:
        received_ns = self._clock.monotonic_ns()
        trace: RequestTrace | None = None
        try:
            served = self._gateway.find(route.model, route.version())
            if served.config.decoupled:
                raise unsupported(
                    "HTTP end point doesn't support models with decoupled transaction policy"
                )
            trace = begin_trace(self._gateway, route.model, received_ns)
            body = compression.decompress(request.header(b"content-encoding"), request.body)
            length = infer_request.json_length(
                request.header(b"inference-header-content-length"), len(body)
            )
        except ServerError as error:
            # Triton types what it finds before the request's own JSON as plain text.
            self._refuse_early(request, error)
            if trace is not None:
                trace.close()
            return
        regions = self._shared_memory.lease()
        exchange = _InferExchange(request, served, regions, self._answers)
        try:
            inference, exchange.form = self._decoder.decode(
                served.config.signature, body, length, exchange, regions
            )
            inference.received_ns = received_ns
            inference.model_version = served.version
            inference.trace = exchange.trace = trace
            request.cancellation = inference.cancellation
            if self._forwarding is not None:
                inference.parameters = self._forwarding.added(inference.parameters, request.fields)
            served.infer(inference)
        except BaseException:
            regions.release()
            if trace is not None:
                trace.close()
            raise

    @staticmethod
    def _refuse_early(request: Request, error: ServerError) -> None:
        headers: list[Header] = []
        if error.message == compression.UNSUPPORTED_CODING:
            headers.append((b"Accept-Encoding", ", ".join(compression.CODINGS).encode()))
        request.reply(
            errors.STATUS[error.code], [errors.body(error.message)], headers, content_type=None
        )


class _InferExchange:
    """An inference request on its way: the sink that its response comes to."""

    __slots__ = ("_answers", "_regions", "_request", "_served", "form", "trace")

    def __init__(
        self,
        request: Request,
        served: ServedModel,
        regions: RegionLease,
        answers: Mailbox[tuple[_InferExchange, InferResponse]],
    ) -> None:
        self._request = request
        self._served = served
        self._regions = regions
        self._answers = answers
        self.form = ResponseForm()
        self.trace: RequestTrace | None = None

    def send(self, response: InferResponse) -> None:
        self._answers.post((self, response))

    def finish(self, response: InferResponse) -> None:
        """Write the reply; on the loop's thread."""
        if self.trace is not None:
            self.trace.stamp("HTTP_SEND_START")
        error = response.error
        if error is None:
            try:
                self._reply(response)
            except ServerError as fault:
                error = fault
            except Exception as defect:  # as in `handle`: nobody is left waiting
                log.exception("reply of %s", response.model_name)
                error = internal(f"{type(defect).__name__}: {defect}")
        if error is not None:
            self._regions.release()
            self._request.reply_error(errors.STATUS[error.code], error.message, as_json=False)
        if self.trace is not None:
            self.trace.stamp("HTTP_SEND_END")
            self.trace.close()

    def _reply(self, response: InferResponse) -> None:
        served = self._served
        encoded = infer_response.encode(response, self.form, served.config.signature, served.labels)
        self._regions.release()  # before the reply: whoever reads it may unregister at once
        headers: list[Header] = []
        if encoded.json_length is not None:
            headers.append((b"Inference-Header-Content-Length", b"%d" % encoded.json_length))
        parts = encoded.parts
        accepted = self._request.header(b"accept-encoding")
        coding = compression.accepted(accepted) if accepted else ""
        if coding:
            parts = [compression.compress(coding, parts)]
            headers.append((b"Content-Encoding", coding.encode()))
        self._request.reply(
            errors.OK,
            parts,
            headers,
            content_type=_JSON if encoded.json_length is None else _BINARY,
        )


def begin_trace(gateway: Gateway, model: str, received_ns: int) -> RequestTrace | None:
    """The trace of a request to `model`, if it is its turn. Whoever asked for it closes it."""
    trace = gateway.tracing.sample(model)
    if trace is not None:
        trace.stamp("HTTP_RECV_START", received_ns)
        trace.stamp("HTTP_RECV_END", received_ns)
    return trace


def _reply_health(request: Request, *, healthy: bool) -> None:
    request.reply(errors.OK if healthy else errors.STATUS[Code.INVALID_ARG], content_type=None)
