"""ModelStreamInfer: many requests on one call, and their responses. Used on the loop's thread."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from reference_server.codecs import infer_proto, infer_proto_response, management_proto, proto_wire
from reference_server.codecs.infer_proto import InferMessageDecoder
from reference_server.codecs.inference import ResponseForm
from reference_server.codecs.proto_fields import Data
from reference_server.codecs.proto_wire import ReceivedRequest
from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import ServerError
from reference_server.core.request import InferRequest, InferResponse, label
from reference_server.frontends.grpc.calls import Call, described_defect
from reference_server.gateway.inference import Inference, Inferences, RunOnThread
from reference_server.repository.versions import ServedModel

log = logging.getLogger(__name__)

#: With this metadata, a model's error ends the stream with a status instead of being a message.
_ERRORS_END_STREAM = "triton_grpc_error"
#: Limits for the requests in flight on one stream, and for the bytes of their messages. At a limit,
#: the client gets no flow-control window until both numbers are below half of their limits.
_MAX_IN_FLIGHT = 1024
_MAX_IN_FLIGHT_BYTES = 1 << 26


def find_model(
    inferences: Inferences, received: ReceivedRequest, *, refuses_decoupled: str = ""
) -> ServedModel:
    """Return the loaded model that a message names. Raises ServerError."""
    message = received.message
    version = management_proto.model_version(message.model_version)
    return inferences.find(message.model_name, version, refuses_decoupled=refuses_decoupled)


def log_failure(received: ReceivedRequest, error: ServerError) -> None:
    """Write the verbose line about a request that was refused."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s Infer failed: %s", label(received.request_id), error.message)


class StreamCall:
    """A call of ModelStreamInfer.

    Responses are sent in the order of the requests, except those of decoupled models, which are
    sent as they arrive.
    """

    def __init__(
        self,
        inferences: Inferences,
        decoder: InferMessageDecoder,
        run: RunOnThread,
        call: Call,
        most_responses: int,
    ) -> None:
        self.call = call
        self._most_responses = most_responses
        self.decoder = decoder
        self._run = run
        #: The message that a codec thread decodes, and later messages.
        self._unread: deque[Data] = deque()
        self._is_half_closed = False  # takes effect once `_unread` is empty
        self.inferences = inferences
        self._errors_end = call.metadata(_ERRORS_END_STREAM) == "true"
        self._ordered: deque[_OrderedRequest] = deque()
        self._decoupled: set[_DecoupledRequest] = set()
        self._is_closed = False
        self._backlog: Backlog | None = None
        self._in_flight_bytes = 0
        self._is_held = False

    def receive(self, message: Data) -> None:
        if self._is_closed:
            return
        if self._unread:
            self._keep(message)
            return
        if proto_wire.is_large(message):
            self._keep(message)
            self._run(lambda: self.decoder.read(message), self._start_large, self._unreadable)
            return
        try:
            received = self.decoder.read(message)
        except ServerError:
            self.half_close()  # in Triton, an unreadable message ends the stream
            return
        streamed: _StreamedRequest | None = None
        try:
            served, streamed = self._enqueue(received, len(message))
            streamed.inference = self.inferences.start(served, streamed)
        except Exception as error:
            (streamed or self._add_request(received, decoupled=False)).answer_refusal(error)
        else:
            if streamed.inference is None:  # a codec thread decodes it
                self._keep(message)

    def _keep(self, message: Data) -> None:
        """Keep a waiting message; it counts as in flight."""
        self._unread.append(message)
        self._count(len(message))

    def _enqueue(
        self, received: ReceivedRequest, size: int
    ) -> tuple[ServedModel, _StreamedRequest]:
        """Find the model of a message of `size` bytes, and add its request to the stream."""
        served = find_model(self.inferences, received)
        streamed = self._add_request(received, decoupled=served.config.decoupled)
        streamed.size = size
        self._count(size)
        return served, streamed

    # -- messages that a codec thread decodes

    def _start_large(self, received: ReceivedRequest) -> None:
        if not self._unread:  # the stream was cancelled
            return
        streamed: _StreamedRequest | None = None
        try:
            served, streamed = self._enqueue(received, len(self._unread[0]))
            streamed.is_large = True
            self.inferences.start(served, streamed)
        except Exception as error:
            (streamed or self._add_request(received, decoupled=False)).answer_refusal(error)
            self._go_on()

    def decoded(self, streamed: _StreamedRequest) -> None:
        """Continue after the request that a codec thread decoded was started or refused."""
        if self._unread:
            self._go_on()
        elif streamed.inference is not None:  # the stream was cancelled
            streamed.inference.cancellation.cancel()

    def _unreadable(self, error: Exception) -> None:
        self._unread.clear()
        self.half_close()

    def _go_on(self) -> None:
        """Remove the decoded message, and process later ones."""
        behind, self._unread = self._unread, deque()
        self._count(-len(behind.popleft()))
        while behind and not self._unread:
            message = behind.popleft()
            self._count(-len(message))
            self.receive(message)
        self._unread += behind
        if self._is_half_closed and not self._unread:
            self.half_close()

    def _add_request(self, received: ReceivedRequest, *, decoupled: bool) -> _StreamedRequest:
        if decoupled:
            free = _DecoupledRequest(self, received)
            self._decoupled.add(free)
            return free
        ordered = _OrderedRequest(self, received)
        self._ordered.append(ordered)
        return ordered

    def backlog(self, backlogs: Backlogs) -> Backlog:
        """Return the backlog of responses to all requests to decoupled models."""
        if self._backlog is None:
            self._backlog = Backlog(backlogs, self._most_responses)
            self.call.watch(self._backlog)
        return self._backlog

    def _count(self, size: int) -> None:
        """Add `size` to the bytes in flight, and stop or resume the client at the limits."""
        self._in_flight_bytes += size
        count, held = len(self._ordered) + len(self._decoupled), self._is_held
        part = 0.5 if held else 1
        is_full = (
            count >= _MAX_IN_FLIGHT * part or self._in_flight_bytes >= _MAX_IN_FLIGHT_BYTES * part
        )
        if is_full is not held:
            self._is_held = is_full
            self.call.hold(held=is_full)

    def half_close(self) -> None:
        if self._unread:
            self._is_half_closed = True
            return
        self._is_closed = True
        self.advance()

    def cancel(self) -> None:
        self._is_closed = True
        self._unread.clear()
        streamed: list[_StreamedRequest] = [*self._ordered, *self._decoupled]
        self._ordered.clear()
        self._decoupled.clear()
        for each in streamed:
            if each.inference is not None:
                each.inference.cancellation.cancel()

    def advance(self) -> None:
        """Send the responses at the head of the queue, up to the first unanswered request."""
        while self._ordered and (answer := self._ordered[0].answer) is not None:
            first = self._ordered.popleft()
            self._count(-first.size)
            self._send(answer, first.failure)
        self._end_if_done()

    def send_from(
        self, streamed: _DecoupledRequest, message: bytes, failure: ServerError | None
    ) -> None:
        """Send a message of a decoupled request, unless the stream was cancelled."""
        if streamed in self._decoupled:
            self._send(message, failure)

    def finished(self, streamed: _DecoupledRequest) -> None:
        """Remove a decoupled request after its last response was sent."""
        if streamed in self._decoupled:
            self._decoupled.discard(streamed)
            self._count(-streamed.size)
        self._end_if_done()

    def _send(self, message: bytes, failure: ServerError | None) -> None:
        if failure is not None and self._errors_end:
            self.call.end(failure)
            self.cancel()
        else:
            self.call.send(message)

    def _end_if_done(self) -> None:
        if self._is_closed and not self._ordered and not self._decoupled:
            self.call.end()


class _StreamedRequest(ABC):
    """One request of a stream; the subclass decides when its responses are sent."""

    __slots__ = ("_form", "_received", "_stream", "inference", "is_large", "size")

    forwards = True

    _form: ResponseForm

    def __init__(self, stream: StreamCall, received: ReceivedRequest) -> None:
        self._stream = stream
        self._received = received
        self.inference: Inference | None = None
        self.is_large = False
        self.size = 0  # the size of its message, if its model was found

    def answer_refusal(self, error: Exception) -> None:
        """Answer a request that was rejected before it was scheduled. Never ends the stream."""
        if not isinstance(error, ServerError):
            error = described_defect(error)
        log_failure(self._received, error)
        message = infer_proto_response.encode_refusal(self._received.request_id, error)
        self._answered(message, None, final=True)

    # -- called by the gateway

    def find(self) -> ServedModel:
        return find_model(self._stream.inferences, self._received)

    def started(self, inference: Inference) -> None:
        self.inference = inference
        self._stream.decoded(self)

    def refuse(self, error: Exception) -> None:
        self.answer_refusal(error)
        self._stream.decoded(self)

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        request, self._form = self._stream.decoder.decode(
            served.config.signature, self._received, inference, inference
        )
        return request

    def fields(self) -> Sequence[tuple[bytes, bytes]]:
        return self._stream.call.fields()

    def encode(self, served: ServedModel, response: InferResponse) -> bytes:
        parts = infer_proto_response.encode(
            response, self._form, served.config.signature, served.labels, final=response.final
        )
        return b"".join(proto_wire.streamed(parts))

    def backlog(self, backlogs: Backlogs) -> Backlog:
        return self._stream.backlog(backlogs)

    def is_large_response(self, response: InferResponse) -> bool:
        return self._form.is_large_response(response.outputs)

    def reply(self, body: bytes, *, final: bool) -> None:
        self._answered(body, None, final=final)

    def fail(self, error: ServerError, *, final: bool) -> None:
        log.debug("Failed for ID: %s\n", self._received.request_id or "<id_unknown>")
        message = infer_proto_response.encode_failure(self._received, error, final=final)
        self._answered(message, error, final=final)

    def end(self) -> None:
        message = infer_proto_response.encode_empty(self._received)
        self._answered(message, None, final=True)

    @abstractmethod
    def _answered(self, message: bytes, failure: ServerError | None, *, final: bool) -> None:
        """Keep or send a message of the response; `failure` is the model's error."""


class _OrderedRequest(_StreamedRequest):
    """A request whose response waits for the responses to earlier requests.

    `answer` is the encoded response, None until it exists. `failure` is the model's error.
    """

    __slots__ = ("answer", "failure")

    def __init__(self, stream: StreamCall, received: ReceivedRequest) -> None:
        super().__init__(stream, received)
        self.answer: bytes | None = None
        self.failure: ServerError | None = None

    def _answered(self, message: bytes, failure: ServerError | None, *, final: bool) -> None:
        self.inference = None
        # An error after the response is dropped, as in Triton.
        if self.answer is None:
            self.answer, self.failure = message, failure
            self._stream.advance()


class _DecoupledRequest(_StreamedRequest):
    """A request to a decoupled model: its responses do not wait for other requests."""

    __slots__ = ()

    def end(self) -> None:
        if infer_proto.wants_empty_final(self._received.message):
            super().end()
        else:
            self._finish()

    def _answered(self, message: bytes, failure: ServerError | None, *, final: bool) -> None:
        self._stream.send_from(self, message, failure)
        if final:
            self._finish()

    def _finish(self) -> None:
        self.inference = None
        self._stream.finished(self)
