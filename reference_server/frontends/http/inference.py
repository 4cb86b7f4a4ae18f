"""Inference over HTTP: `infer`, `generate` and its stream. Used on the event loop's thread."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reference_server.codecs import bodies, generate, infer_json
from reference_server.codecs.bodies import InputLimit
from reference_server.codecs.infer_json import InferRequestDecoder
from reference_server.codecs.inference import Labels, ResponseForm
from reference_server.codecs.json_writer import EncodedResponse, InferResponseEncoder
from reference_server.core import gil
from reference_server.core.backlog import Backlog, Backlogs, Intake
from reference_server.core.cpp import leading_integer
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.profiles import TritonProfile
from reference_server.core.request import InferRequest, InferResponse, label
from reference_server.core.tensor import DataType
from reference_server.frontends.http import status_codes
from reference_server.frontends.http.request import Header, Part, Request
from reference_server.frontends.http.routes import Route
from reference_server.gateway.inference import Inference, Inferences, TraceEvents
from reference_server.repository.versions import ServedModel

log = logging.getLogger(__name__)

TRACE_EVENTS = TraceEvents(
    "HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END", traces_refusals=True
)
_BINARY = b"application/octet-stream"
_JSON = b"application/json"
_EVENTS = b"text/event-stream; charset=utf-8"
_REFUSES_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
_ONLY_IDENTITY = "Unsupported content-encoding, only 'identity' is supported."
_NOT_ONE = status_codes.body(
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


class InferenceHandlers:
    """The handlers of the inference operations.

    `limit` is the size limit of bodies, before and after decompression; `intake` is the memory
    budget for long bodies.
    """

    def __init__(
        self, inferences: Inferences, profile: TritonProfile, limit: InputLimit, intake: Intake
    ) -> None:
        self._inferences = inferences
        self._profile = profile
        self._limit = limit
        self._context = _CallContext(
            *(inferences, InferRequestDecoder(profile, limit), limit, intake),
            *(profile.newer_request_checks, InferResponseEncoder().encode),
        )

    def infer(self, request: Request, route: Route) -> None:
        """Send `request` to its model, and reply with the response. Raises ServerError."""
        call = _InferCall(request, route, _InferHead.of(request), self._context)
        try:
            started = self._inferences.start(call.find(), call)
        except ServerError as error:
            call.refuse(error)
            return
        if started is not None:
            request.cancellation = started.cancellation

    def generate(self, request: Request, route: Route) -> None:
        """Reply with the only response of the model. Raises ServerError."""
        self._generate(request, route, streams=False)

    def generate_stream(self, request: Request, route: Route) -> None:
        """Reply with an event for each response of the model. Raises ServerError."""
        self._generate(request, route, streams=True)

    def _generate(self, request: Request, route: Route, *, streams: bool) -> None:
        inferences = self._inferences
        call = _GenerateCall(request, route, inferences, self._profile, self._limit, streams)
        served = call.find()
        try:
            started = inferences.start(served, call)
        except ServerError as error:
            call.refuse(error)
            return
        if started is not None:
            request.cancellation = started.cancellation


def _as_server_error(error: Exception, request: Request) -> ServerError:
    """Return the error that the client receives; a defect is logged."""
    if isinstance(error, ServerError):
        return error
    log.error("%s", request.url, exc_info=error)
    return internal(f"{type(error).__name__}: {error}")


#: The prefix of error texts about a request that was decoded, with the request's id.
_LABEL = re.compile(r"\[request id: .*?\] ")


def _log_failure(error: ServerError) -> None:
    """Log that a request was refused, at debug level."""
    if log.isEnabledFor(logging.DEBUG):
        found = _LABEL.match(error.message)
        log.debug("%sInfer failed: %s", found[0] if found else f"{label('')} ", error.message)


class _InferHead:
    """The parsed head of an `infer` request; shared by all requests with the same head."""

    __slots__ = ("_json", "_length", "accepts", "coding", "has_accept_encoding", "is_compressed")

    def __init__(self, request: Request) -> None:
        self.coding = request.header(b"content-encoding")
        self.is_compressed = self.coding not in (None, "identity")
        self._length = request.header(b"inference-header-content-length")
        self._json: tuple[int, int] | None = None  # the sizes of the last body and of its JSON
        accepted = request.header(b"accept-encoding")
        # Most clients send `identity`, or no such header.
        self.accepts = bodies.accepted(accepted) if accepted not in (None, "identity") else ""
        self.has_accept_encoding = accepted is not None

    @classmethod
    def of(cls, request: Request) -> _InferHead:
        known: _InferHead | None = request.notes.get(cls)
        if known is None:
            known = request.notes[cls] = cls(request)
        return known

    def is_large(self, body: int) -> bool:
        """Return True if a body of `body` bytes has long JSON, or is compressed."""
        if self.is_compressed or not gil.is_long(json_bytes=body):
            return self.is_compressed
        stated = body if self._length is None else leading_integer(self._length) or 0
        return gil.is_long(json_bytes=stated)

    def json_length(self, size: int, *, strictly: bool) -> int:
        """Return the number of JSON bytes in a decompressed body of `size` bytes.

        Raises:
            ServerError: the header with that number is invalid.
        """
        if self._json is None or self._json[0] != size:
            self._json = size, infer_json.json_length(self._length, size, strictly=strictly)
        return self._json[1]


#: The form of a request that is not decoded yet.
_NO_FORM = ResponseForm()


class _Reply(NamedTuple):
    """The body of a reply to `infer`, with the headers that depend on it."""

    parts: Sequence[Part]
    headers: list[Header]
    content_type: bytes


class _CallContext(NamedTuple):
    """The objects that all calls of `infer` share."""

    inferences: Inferences
    decoder: InferRequestDecoder
    limit: InputLimit
    intake: Intake
    strict_lengths: bool
    encode: Callable[[InferResponse, ResponseForm, Signature, Labels], EncodedResponse]


class _InferCall:
    """A request of `infer`. For the attributes and methods see `InferenceCall`."""

    __slots__ = ("_context", "_form", "_head", "_reached_json", "_route", "is_large", "request")

    end = None
    forwards = True

    def __init__(
        self, request: Request, route: Route, head: _InferHead, context: _CallContext
    ) -> None:
        self.request = request
        self._route = route
        self._head = head
        self._context = context
        self.is_large = head.is_large(len(request.body))
        self._form = _NO_FORM
        self._reached_json = False  # decides the content type of a rejection

    def find(self) -> ServedModel:
        return self._context.inferences.find(
            self._route.model, self._route.version, refuses_decoupled=_REFUSES_DECOUPLED
        )

    def started(self, inference: Inference) -> None:
        self.request.cancellation = inference.cancellation

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        request = self.request
        body = request.body
        size = request.dropped or len(body)
        if self._head.is_compressed:
            plain = bodies.decompress(self._head.coding, body, self._context.limit)
            body = self._context.intake.keep(plain)
            size = len(body)
        length = self._head.json_length(size, strictly=self._context.strict_lengths)
        self._reached_json = True
        if request.dropped:
            limit = self._context.limit
            check = limit.check_json if length else limit.check_raw
            check(length or size)
        decoder = self._context.decoder
        decode = decoder.decode_uncached if inference.on_codec_thread else decoder.decode
        inferred, self._form = decode(served.config.signature, body, length, inference, inference)
        return inferred

    def refuse(self, error: Exception) -> None:
        error = _as_server_error(error, self.request)
        if self._reached_json:
            _log_failure(error)
            status = status_codes.STATUS[error.code]
            self.request.reply_error(status, error.message, as_json=True)
        else:
            _refuse_early(self.request, error)

    def fields(self) -> Sequence[Header]:
        return self.request.fields

    def encode(self, served: ServedModel, response: InferResponse) -> _Reply:
        encoded = self._context.encode(response, self._form, served.config.signature, served.labels)
        headers: list[Header] = []
        if encoded.json_length is not None:
            headers.append((b"Inference-Header-Content-Length", b"%d" % encoded.json_length))
        headers += _stand_in(served)
        parts: Sequence[Part] = encoded.parts
        coding = self._head.accepts
        if coding:
            parts = [bodies.compress(coding, parts)]
            headers.append((b"Content-Encoding", coding.encode()))
        return _Reply(parts, headers, _JSON if encoded.json_length is None else _BINARY)

    def backlog(self, backlogs: Backlogs) -> None:
        """Ignore it: the model sends one response."""

    def is_large_response(self, response: InferResponse) -> bool:
        outputs = response.outputs
        if not _is_long(response):
            return False
        if gil.is_long(string_bytes=len(response.id)):
            return True
        if self._head.has_accept_encoding or self._form.is_large_response(outputs):
            return True
        forms = (self._form.of(tensor.name) for tensor in outputs)
        return not all(form.binary or form.buffer is not None for form in forms)

    def reply(self, body: _Reply, *, final: bool) -> None:
        self.request.reply(
            status_codes.OK, body.parts, body.headers, content_type=body.content_type
        )

    def fail(self, error: ServerError, *, final: bool) -> None:
        self.request.reply_error(status_codes.STATUS[error.code], error.message, as_json=False)


def _is_long(response: InferResponse) -> bool:
    """Return whether writing all elements, strings and the id of a response as JSON takes long."""
    elements, string_bytes = 0, len(response.id)
    for tensor in response.outputs:
        count = math.prod(tensor.shape)
        elements += count
        if tensor.datatype is DataType.BYTES and not gil.is_long(elements=count):
            string_bytes += tensor.string_bytes
    return gil.is_long(elements=elements, string_bytes=string_bytes)


def _refuse_early(request: Request, error: ServerError) -> None:
    """Reply with an error that occurred before JSON was read: as plain text, as in Triton."""
    headers: list[Header] = []
    if error.message == bodies.UNSUPPORTED_CODING:
        headers.append((b"Accept-Encoding", ", ".join(bodies.CODINGS).encode()))
    status, body = status_codes.STATUS[error.code], status_codes.body(error.message)
    request.reply(status, [body], headers, content_type=None)


def _stand_in(served: ServedModel) -> Sequence[Header]:
    """Return the header that marks answers of a stand-in for a model that cannot run."""
    reason = served.config.stand_in
    return [(b"Stand-In", reason.encode("ascii", "replace"))] if reason else ()


class _GenerateCall:
    """A request of `generate`.

    The headers are sent with the first response, or with the final flag. A stream has an event for
    each response; without a stream there must be exactly one response.
    """

    __slots__ = (
        *("_body", "_count", "_headers", "_inferences", "_limit", "_profile", "_route"),
        "_streams",
        "request",
    )

    forwards = False  # Triton forwards no headers here

    def __init__(
        self,
        request: Request,
        route: Route,
        inferences: Inferences,
        profile: TritonProfile,
        limit: InputLimit,
        streams: bool,
    ) -> None:
        self.request = request
        self._route = route
        self._inferences = inferences
        self._profile = profile
        self._limit = limit
        self._streams = streams
        self._count = 0
        self._body = b""
        self._headers: Sequence[Header] = ()

    @property
    def is_large(self) -> bool:
        return gil.is_long(json_bytes=len(self.request.body))

    def find(self) -> ServedModel:
        return self._inferences.find(self._route.model, self._route.version)

    def started(self, inference: Inference) -> None:
        self.request.cancellation = inference.cancellation

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        if self.request.header(b"content-encoding") not in (None, "identity"):
            raise invalid_arg(_ONLY_IDENTITY)
        self._limit.check_json(self.request.size)
        signature = served.config.signature
        return generate.decode(signature, self.request.body, inference, self._profile, self._limit)

    def refuse(self, error: Exception) -> None:
        error = _as_server_error(error, self.request)
        if error.message != _ONLY_IDENTITY:  # as in Triton
            _log_failure(error)
        status = status_codes.STATUS[error.code]
        self.request.reply_error(status, error.message, as_json=True)

    def fields(self) -> Sequence[Header]:
        return self.request.fields

    def encode(self, served: ServedModel, response: InferResponse) -> bytes:
        self._headers = _stand_in(served)
        return generate.encode(response)

    def backlog(self, backlogs: Backlogs) -> Backlog | None:
        if self._streams:
            self.request.backlog = Backlog(backlogs)
        return self.request.backlog

    def is_large_response(self, response: InferResponse) -> bool:
        return _is_long(response)

    def reply(self, body: bytes, *, final: bool) -> None:
        self._send(status_codes.OK, body, final=final)

    def fail(self, error: ServerError, *, final: bool) -> None:
        # Triton replies to every error with status 400 here.
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
        self.request.begin_chunks(status, _EVENTS if self._streams else _JSON, self._headers)

    def end(self) -> None:
        if not self._count:
            self._begin(status_codes.OK)
        if not self._streams:
            self.request.send_chunk(self._body if self._count == 1 else _NOT_ONE)
        self.request.end_chunks()
