"""What each operation answers over HTTP. Everything here runs on the loop's thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from reference_server.codecs import compression, infer_request, infer_response, model_json
from reference_server.codecs.infer_options import ResponseForm
from reference_server.core.clock import Clock
from reference_server.core.errors import Code, ServerError, internal, unsupported
from reference_server.core.response import InferResponse
from reference_server.fronts.http import errors, routes
from reference_server.fronts.http.connection import Header, Request
from reference_server.fronts.http.routes import Operation, Route
from reference_server.fronts.mailbox import Mailbox
from reference_server.gateway.gateway import Gateway
from reference_server.repository.served import ServedModel

log = logging.getLogger(__name__)

_BINARY = b"application/octet-stream"
_JSON = b"application/json"
#: Operations that refuse a method in plain text: Triton leaves the type to its HTTP library.
_PLAIN = frozenset({Operation.LIVE, Operation.READY, Operation.MODEL_READY, Operation.INFER})
_Handler = Callable[[Request, Route], None]


class HttpHandlers:
    """Answers requests by asking the gateway."""

    def __init__(self, gateway: Gateway, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock
        self._decoder = infer_request.InferRequestDecoder()
        self._answers: Mailbox[tuple[_InferExchange, InferResponse]] = Mailbox(
            loop, lambda answer: answer[0].finish(answer[1])
        )
        self._handlers: dict[Operation, _Handler] = {
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

    def handle(self, request: Request) -> None:
        """Answer `request`, now or when its model has answered."""
        route = routes.match(request.url)
        if route is None:
            request.reply_error(errors.NOT_FOUND, "Not Found", as_json=False)
            return
        operation = route.operation
        if request.method != operation.method:
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
            ready = self._gateway.model_ready(route.model, route.version())
        except ServerError as error:
            request.reply_error(errors.STATUS[error.code], error.message, as_json=False)
            return
        if ready:
            request.reply(errors.OK, content_type=None)
        else:
            request.reply_error(errors.BAD_REQUEST, "Model version not ready", as_json=False)

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
        try:
            served = self._gateway.find(route.model, route.version())
            if served.config.decoupled:
                raise unsupported(
                    "HTTP end point doesn't support models with decoupled transaction policy"
                )
            body = compression.decompress(request.header(b"content-encoding"), request.body)
            length = infer_request.json_length(
                request.header(b"inference-header-content-length"), len(body)
            )
        except ServerError as error:
            # Triton types what it finds before the request's own JSON as plain text.
            self._refuse_early(request, error)
            return
        exchange = _InferExchange(request, served, self._answers)
        inference, exchange.form = self._decoder.decode(
            served.config.signature, body, length, exchange
        )
        inference.received_ns = received_ns
        inference.model_version = served.version
        served.infer(inference)

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

    __slots__ = ("_answers", "_request", "_served", "form")

    def __init__(
        self,
        request: Request,
        served: ServedModel,
        answers: Mailbox[tuple[_InferExchange, InferResponse]],
    ) -> None:
        self._request = request
        self._served = served
        self._answers = answers
        self.form = ResponseForm()

    def send(self, response: InferResponse) -> None:
        self._answers.post((self, response))

    def finish(self, response: InferResponse) -> None:
        """Write the reply; on the loop's thread."""
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
            self._request.reply_error(errors.STATUS[error.code], error.message, as_json=False)

    def _reply(self, response: InferResponse) -> None:
        served = self._served
        encoded = infer_response.encode(response, self.form, served.config.signature, served.labels)
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


def _reply_health(request: Request, *, healthy: bool) -> None:
    request.reply(errors.OK if healthy else errors.STATUS[Code.INVALID_ARG], content_type=None)
