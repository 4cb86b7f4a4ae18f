"""Inference over HTTP: `infer`, and `generate` with its stream. All on the loop's thread."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reference_server.codecs import compression, generate, infer_json, infer_json_response
from reference_server.codecs.infer_json import InferRequestDecoder
from reference_server.codecs.input_limit import InputLimit
from reference_server.codecs.response_forms import ResponseForm
from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.numerals import leading_integer
from reference_server.core.ports import Regions
from reference_server.core.profiles import TritonProfile
from reference_server.core.request import InferRequest, InferResponse, ResponseSink
from reference_server.frontends.http import status_codes
from reference_server.frontends.http.request import Header, Part, Request
from reference_server.frontends.http.routes import Route
from reference_server.gateway.inference import Inference, Inferences, TraceEvents
from reference_server.repository.versions import ServedModel

log = logging.getLogger(__name__)

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


#: Bytes of JSON that are read at once; more would hold up the loop, and other clients.
AT_ONCE = 1 << 17
#: Elements that are written as JSON, or compressed, at once: some milliseconds' work.
_ELEMENTS_AT_ONCE = 1 << 13


class InferenceHandlers:
    """The handlers of the inference operations.

    `limit` is for the sizes of bodies, and what they become.
    """

    def __init__(
        self,
        inferences: Inferences,
        profile: TritonProfile,
        limit: InputLimit,
    ) -> None:
        self._inferences = inferences
        self._decoder = InferRequestDecoder(profile, limit)
        self._profile = profile
        self._limit = limit
        self._strict_lengths = profile.strict_header_lengths

    def infer(self, request: Request, route: Route) -> None:
        """Answer `request` when its model has answered. Raises ServerError."""
        reads_long = _reads_long(request)
        decoder = self._decoder
        call = _InferCall(
            request,
            decoder.decode_alone if reads_long else decoder.decode,
            self._limit,
            strict_lengths=self._strict_lengths,
        )
        try:
            served = self._inferences.find(
                route.model, route.version, refuses_decoupled=_REFUSES_DECOUPLED
            )
            if reads_long:
                self._read_later(call, route, served)
            else:
                request.cancellation = self._inferences.start(served, call).cancellation
        except ServerError as error:
            call.refuse(error)

    def generate(self, request: Request, route: Route) -> None:
        """Answer `request` with the one response of its model. Raises ServerError."""
        self._generate(route, _GenerateCall(request, self._profile, self._limit, streams=False))

    def generate_stream(self, request: Request, route: Route) -> None:
        """Answer `request` with an event for each response of its model. Raises ServerError."""
        self._generate(route, _GenerateCall(request, self._profile, self._limit, streams=True))

    def _generate(self, route: Route, call: _GenerateCall) -> None:
        served = self._inferences.find(route.model, route.version)
        if len(call.request.body) > AT_ONCE:
            self._read_later(call, route, served)
        else:
            call.request.cancellation = self._inferences.start(served, call).cancellation

    def _read_later(
        self, call: _InferCall | _GenerateCall, route: Route, served: ServedModel
    ) -> None:
        """Read the request away from the loop, then send it."""

        def started(inference: Inference) -> None:
            call.request.cancellation = inference.cancellation

        def failed(error: Exception) -> None:
            if not isinstance(error, ServerError):  # a defect must not leave the client waiting
                log.error("%s", call.request.url, exc_info=error)
                error = internal(f"{type(error).__name__}: {error}")
            call.refuse(error)

        self._inferences.start_later(
            *(served, call, lambda: self._inferences.find(route.model, route.version)),
            *(started, failed),
        )


def _reads_long(request: Request) -> bool:
    """Whether reading the request would hold up the loop: it has long JSON, or is compressed."""
    if b"content-encoding" in request.headers:
        return request.headers[b"content-encoding"] != b"identity"
    if len(request.body) <= AT_ONCE:
        return False
    length = request.header(b"inference-header-content-length")
    return length is None or (leading_integer(length) or 0) > AT_ONCE


class _Reply(NamedTuple):
    """The body of a reply to `infer`, and what its headers say of it."""

    parts: Sequence[Part]
    headers: list[Header]
    content_type: bytes


#: `InferRequestDecoder.decode`, or its `decode_alone`.
_Decode = Callable[
    [Signature, memoryview, int, ResponseSink, Regions], tuple[InferRequest, ResponseForm]
]


class _InferCall:
    """A request of `infer`."""

    __slots__ = ("_decode", "_form", "_limit", "_reached_json", "_strict_lengths", "request")

    end = None

    def __init__(
        self, request: Request, decode: _Decode, limit: InputLimit, *, strict_lengths: bool
    ) -> None:
        self.request = request
        self._decode = decode
        self._limit = limit
        self._strict_lengths = strict_lengths
        self._form = ResponseForm()
        self._reached_json = False  # which decides how a refusal is typed

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        request = self.request
        body = request.body
        size = request.dropped or len(body)
        coding = request.header(b"content-encoding")
        if coding is not None:
            body = compression.decompress(coding, body, self._limit)
            size = len(body)
        length = infer_json.json_length(
            request.header(b"inference-header-content-length"),
            size,
            strictly=self._strict_lengths,
        )
        self._reached_json = True
        if request.dropped:
            check = self._limit.check_json if length else self._limit.check_raw
            check(length or size)
        inferred, self._form = self._decode(
            served.config.signature, body, length, inference, inference
        )
        return inferred

    def refuse(self, error: ServerError) -> None:
        """Answer a request that did not get to its model."""
        if self._reached_json:
            status = status_codes.STATUS[error.code]
            self.request.reply_error(status, error.message, as_json=True)
        else:
            _refuse_early(self.request, error)

    def fields(self) -> Sequence[Header]:
        return self.request.fields

    def encode(self, served: ServedModel, response: InferResponse) -> _Reply:
        encoded = infer_json_response.encode(
            response, self._form, served.config.signature, served.labels
        )
        headers: list[Header] = []
        if encoded.json_length is not None:
            headers.append((b"Inference-Header-Content-Length", b"%d" % encoded.json_length))
        parts: Sequence[Part] = encoded.parts
        accepted = self.request.header(b"accept-encoding")
        # Most clients say `identity`, or nothing.
        coding = compression.accepted(accepted) if accepted not in (None, "identity") else ""
        if coding:
            parts = [compression.compress(coding, parts)]
            headers.append((b"Content-Encoding", coding.encode()))
        return _Reply(parts, headers, _JSON if encoded.json_length is None else _BINARY)

    def backlog(self, backlogs: Backlogs) -> None:
        """Its model sends one response."""

    def takes_long(self, response: InferResponse) -> bool:
        outputs = response.outputs
        if sum(math.prod(tensor.shape) for tensor in outputs) <= _ELEMENTS_AT_ONCE:
            return False
        if b"accept-encoding" in self.request.headers:
            return True
        forms = (self._form.of(tensor.name) for tensor in outputs)
        return not all(form.binary or form.buffer is not None for form in forms)

    def reply(self, body: _Reply, *, final: bool) -> None:
        self.request.reply(
            status_codes.OK, body.parts, body.headers, content_type=body.content_type
        )

    def fail(self, error: ServerError, *, final: bool) -> None:
        self.request.reply_error(status_codes.STATUS[error.code], error.message, as_json=False)


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

    __slots__ = ("_body", "_count", "_limit", "_profile", "_streams", "request")

    def __init__(
        self, request: Request, profile: TritonProfile, limit: InputLimit, *, streams: bool
    ) -> None:
        self.request = request
        self._profile = profile
        self._limit = limit
        self._streams = streams
        self._count = 0
        self._body = b""

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        if self.request.header(b"content-encoding") not in (None, "identity"):
            raise invalid_arg("Unsupported content-encoding, only 'identity' is supported.")
        self._limit.check_json(self.request.size)
        signature = served.config.signature
        return generate.decode(signature, self.request.body, inference, self._profile, self._limit)

    def refuse(self, error: ServerError) -> None:
        """Answer a request that did not get to its model."""
        status = status_codes.STATUS[error.code]
        self.request.reply_error(status, error.message, as_json=True)

    def fields(self) -> tuple[()]:
        return ()  # as in Triton, no header of these requests is forwarded

    def encode(self, served: ServedModel, response: InferResponse) -> bytes:
        return generate.encode(response)

    def backlog(self, backlogs: Backlogs) -> Backlog | None:
        if self._streams:
            self.request.backlog = Backlog(backlogs)
        return self.request.backlog

    def takes_long(self, response: InferResponse) -> bool:
        # Its responses may be many, and are texts.
        return False

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
