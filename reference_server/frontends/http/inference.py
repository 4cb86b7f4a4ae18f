"""Inference over HTTP: `infer`, and `generate` with its stream. All on the loop's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_server.codecs import compression, generate, infer_json, infer_json_response
from reference_server.codecs.infer_json import InferRequestDecoder
from reference_server.codecs.response_forms import ResponseForm
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.request import InferRequest, InferResponse
from reference_server.frontends.http import status_codes
from reference_server.frontends.http.request import Header, Part, Request
from reference_server.frontends.http.routes import Route
from reference_server.gateway.inference import Inference, Inferences, TraceEvents
from reference_server.repository.versions import ServedModel

TRACE_EVENTS = TraceEvents(
    "HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END", tells_refusals=True
)
_BINARY = b"application/octet-stream"
_JSON = b"application/json"
_EVENTS = b"text/event-stream; charset=utf-8"
_REFUSES_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
_NOT_ONE = status_codes.body(
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


class InferenceHandlers:
    """The handlers of the inference operations."""

    def __init__(self, inferences: Inferences) -> None:
        self._inferences = inferences
        self._decoder = InferRequestDecoder()

    def infer(self, request: Request, route: Route) -> None:
        """Answer `request` when its model has answered. Raises ServerError."""
        call = _InferCall(request, self._decoder)
        try:
            served = self._inferences.find(
                route.model, route.version, refuses_decoupled=_REFUSES_DECOUPLED
            )
            inference = self._inferences.start(served, call)
        except ServerError as error:
            if call.reached_json:
                raise
            _refuse_early(request, error)
        else:
            request.cancellation = inference.cancellation

    def generate(self, request: Request, route: Route) -> None:
        """Answer `request` with the one response of its model. Raises ServerError."""
        self._generate(route, _GenerateCall(request, streams=False))

    def generate_stream(self, request: Request, route: Route) -> None:
        """Answer `request` with an event for each response of its model. Raises ServerError."""
        self._generate(route, _GenerateCall(request, streams=True))

    def _generate(self, route: Route, call: _GenerateCall) -> None:
        served = self._inferences.find(route.model, route.version)
        call.request.cancellation = self._inferences.start(served, call).cancellation


class _Reply(NamedTuple):
    """The body of a reply to `infer`, and what its headers say of it."""

    parts: Sequence[Part]
    headers: list[Header]
    content_type: bytes


class _InferCall:
    """A request of `infer`. `reached_json` once its JSON has been looked at."""

    __slots__ = ("_decoder", "_form", "_request", "reached_json")

    end = None

    def __init__(self, request: Request, decoder: InferRequestDecoder) -> None:
        self._request = request
        self._decoder = decoder
        self._form = ResponseForm()
        self.reached_json = False

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        request = self._request
        body = request.body
        coding = request.header(b"content-encoding")
        if coding is not None:
            body = compression.decompress(coding, body)
        length = infer_json.json_length(
            request.header(b"inference-header-content-length"), len(body)
        )
        self.reached_json = True
        inferred, self._form = self._decoder.decode(
            served.config.signature, body, length, inference, inference
        )
        return inferred

    def fields(self) -> Sequence[Header]:
        return self._request.fields

    def encode(self, served: ServedModel, response: InferResponse) -> _Reply:
        encoded = infer_json_response.encode(
            response, self._form, served.config.signature, served.labels
        )
        headers: list[Header] = []
        if encoded.json_length is not None:
            headers.append((b"Inference-Header-Content-Length", b"%d" % encoded.json_length))
        parts: Sequence[Part] = encoded.parts
        accepted = self._request.header(b"accept-encoding")
        # Most clients say `identity`, or nothing.
        coding = compression.accepted(accepted) if accepted not in (None, "identity") else ""
        if coding:
            parts = [compression.compress(coding, parts)]
            headers.append((b"Content-Encoding", coding.encode()))
        return _Reply(parts, headers, _JSON if encoded.json_length is None else _BINARY)

    def reply(self, body: _Reply, *, final: bool) -> None:
        self._request.reply(
            status_codes.OK, body.parts, body.headers, content_type=body.content_type
        )

    def fail(self, error: ServerError, *, final: bool) -> None:
        self._request.reply_error(status_codes.STATUS[error.code], error.message, as_json=False)


def _refuse_early(request: Request, error: ServerError) -> None:
    """Answer as Triton types what it finds before the request's own JSON: as plain text."""
    headers: list[Header] = []
    if error.message == compression.UNSUPPORTED_CODING:
        headers.append((b"Accept-Encoding", ", ".join(compression.CODINGS).encode()))
    status, body = status_codes.STATUS[error.code], status_codes.body(error.message)
    request.reply(status, [body], headers, content_type=None)


class _GenerateCall:
    """A request of `generate`.

    The headers are sent with the first response, or with the final mark. A stream has an event for
    each response; otherwise there is to be exactly one.
    """

    __slots__ = ("_body", "_count", "_streams", "request")

    def __init__(self, request: Request, *, streams: bool) -> None:
        self.request = request
        self._streams = streams
        self._count = 0
        self._body = b""

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        if self.request.header(b"content-encoding") not in (None, "identity"):
            raise invalid_arg("Unsupported content-encoding, only 'identity' is supported.")
        return generate.decode(served.config.signature, self.request.body, inference)

    def fields(self) -> tuple[()]:
        return ()  # as in Triton, no header of these requests is forwarded

    def encode(self, served: ServedModel, response: InferResponse) -> bytes:
        return generate.encode(response)

    def reply(self, body: bytes, *, final: bool) -> None:
        self._send(status_codes.OK, body, final=final)

    def fail(self, error: ServerError, *, final: bool) -> None:
        # Whatever is wrong, Triton says 400 here.
        self._send(status_codes.BAD_REQUEST, status_codes.body(error.message), final=final)

    def _send(self, status: bytes, body: bytes, *, final: bool) -> None:
        self._body = body
        self._count += 1
        if self._count == 1:
            self._begin(status)
        if self._streams:
            self.request.send_chunk(b"data: %b\n\n" % body)
        if final:
            self.end()

    def _begin(self, status: bytes) -> None:
        self.request.begin_chunks(status, _EVENTS if self._streams else _JSON)

    def end(self) -> None:
        if not self._count:
            self._begin(status_codes.OK)
        if not self._streams:
            self.request.send_chunk(self._body if self._count == 1 else _NOT_ONE)
        self.request.end_chunks()
