"""The generate endpoints: one flat object for one response, or a stream of them.

Everything here runs on the loop's thread, but for the sink.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from reference_server.codecs import generate
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.ports import Clock
from reference_server.core.request import RequestTrace
from reference_server.core.response import InferResponse
from reference_server.frontends.http import errors
from reference_server.frontends.http.handlers import Handler, begin_trace
from reference_server.frontends.http.request import Request
from reference_server.frontends.http.routes import Operation, Route
from reference_server.frontends.mailbox import Mailbox
from reference_server.gateway.gateway import Gateway

log = logging.getLogger(__name__)

_JSON = b"application/json"
_EVENTS = b"text/event-stream; charset=utf-8"
_NOT_ONE = errors.body(
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


def handlers(
    gateway: Gateway, loop: asyncio.AbstractEventLoop, clock: Clock
) -> Mapping[Operation, Handler]:
    """Who answers the generate operations."""
    answers: Mailbox[tuple[_Exchange, InferResponse]] = Mailbox(
        loop, lambda answer: answer[0].finish(answer[1])
    )

    def start(request: Request, route: Route, exchange: _Exchange) -> None:
        received_ns = clock.monotonic_ns()
        served = gateway.find(route.model, route.version())
        exchange.trace = begin_trace(gateway, route.model, received_ns)
        try:
            if request.header(b"content-encoding") not in (None, "identity"):
                raise invalid_arg("Unsupported content-encoding, only 'identity' is supported.")
            inference = generate.decode(served.config.signature, request.body, exchange)
            inference.received_ns = received_ns
            inference.model_version = served.version
            inference.trace = exchange.trace
            request.cancellation = inference.cancellation
            served.infer(inference)
        except BaseException:
            if exchange.trace is not None:
                exchange.trace.close()
            raise

    return {
        Operation.GENERATE: lambda request, route: start(
            request, route, _Exchange(request, answers, streams=False)
        ),
        Operation.GENERATE_STREAM: lambda request, route: start(
            request, route, _Exchange(request, answers, streams=True)
        ),
    }


class _Exchange:
    """A request on its way: the sink that its responses come to.

    The head is sent with the first of them, or with the final mark. A stream has an event for each
    response; otherwise there is to be exactly one.
    """

    __slots__ = ("_answers", "_body", "_count", "_request", "_streams", "trace")

    def __init__(
        self,
        request: Request,
        answers: Mailbox[tuple[_Exchange, InferResponse]],
        *,
        streams: bool,
    ) -> None:
        self._request = request
        self._answers = answers
        self._streams = streams
        self._count = 0
        self._body = b""
        self.trace: RequestTrace | None = None

    def send(self, response: InferResponse) -> None:
        self._answers.post((self, response))

    def finish(self, response: InferResponse) -> None:
        """Write what this response adds to the reply; on the loop's thread."""
        if not response.empty:
            self._write(response)
        if response.final:
            self._end()

    def _write(self, response: InferResponse) -> None:
        if self.trace is not None:
            self.trace.stamp("HTTP_SEND_START")
        status, self._body = _encoded(response)
        self._count += 1
        if self._count == 1:
            self._begin(status)
        if self._streams:
            self._request.send_chunk(b"data: %b\n\n" % self._body)
        if self.trace is not None:
            self.trace.stamp("HTTP_SEND_END")

    def _begin(self, status: bytes) -> None:
        self._request.begin_chunks(status, _EVENTS if self._streams else _JSON)

    def _end(self) -> None:
        if not self._count:
            self._begin(errors.OK)
        if not self._streams:
            self._request.send_chunk(self._body if self._count == 1 else _NOT_ONE)
        self._request.end_chunks()
        if self.trace is not None:
            self.trace.close()


def _encoded(response: InferResponse) -> tuple[bytes, bytes]:
    """The status and the object of a response. Whatever is wrong with it, Triton says 400."""
    try:
        if response.error is None:
            return errors.OK, generate.encode(response)
        error = response.error
    except ServerError as fault:
        error = fault
    except Exception as defect:  # nobody is left waiting
        log.exception("reply of %s", response.model_name)
        error = internal(f"{type(defect).__name__}: {defect}")
    return errors.BAD_REQUEST, errors.body(error.message)
