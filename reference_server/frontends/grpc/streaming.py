"""ModelStreamInfer: many requests on one call, and their answers. All on the loop's thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from reference_server.codecs import (
    infer_proto,
    infer_proto_response,
    management_proto,
    proto_wire,
)
from reference_server.codecs.infer_proto import InferMessageDecoder
from reference_server.codecs.proto_fields import Data
from reference_server.codecs.proto_wire import ReceivedRequest
from reference_server.codecs.response_forms import ResponseForm
from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import ServerError
from reference_server.core.request import InferRequest, InferResponse
from reference_server.frontends.grpc.calls import Call, described_defect
from reference_server.gateway.inference import Inference, Inferences, RunOnThread
from reference_server.repository.versions import ServedModel

#: With this metadata a model's error ends the stream with its status, instead of being a message.
_ERRORS_END_STREAM = "triton_grpc_error"
#: Requests of one stream, and bytes of their messages, that may be in flight; who has asked for
#: more asks for no more until half of them are answered.
_MOST_ASKED = 1024
_MOST_ASKED_BYTES = 1 << 26


def find_model(
    inferences: Inferences, received: ReceivedRequest, *, refuses_decoupled: str = ""
) -> ServedModel:
    """The loaded model that a message names. Raises ServerError."""
    message = received.message
    version = management_proto.model_version(message.model_version)
    return inferences.find(message.model_name, version, refuses_decoupled=refuses_decoupled)


class StreamCall:
    """A call of ModelStreamInfer.

    Answers are sent in the order of the requests, but for those of decoupled models, which are sent
    as they come.
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
        #: A message that a codec thread decodes, and the messages behind it.
        self._unread: deque[Data] = deque()
        self._is_half_closed = False  # but for those
        self.inferences = inferences
        self._errors_end = call.metadata(_ERRORS_END_STREAM) == "true"
        self._ordered: deque[_OrderedRequest] = deque()
        self._decoupled: set[_DecoupledRequest] = set()
        self._is_closed = False
        self._backlog: Backlog | None = None
        self._asked_bytes = 0
        self._is_held = False

    def receive(self, message: Data) -> None:
        if self._is_closed:
            return
        if self._unread:
            self._keep(message)
            return
        if self.decoder.is_large(message):
            self._keep(message)
            self._run(lambda: self.decoder.read(message), self._start_large, self._unreadable)
            return
        try:
            received = self.decoder.read(message)
        except ServerError:
            self.half_close()  # to the real server, what it cannot read is the end
            return
        asked: _StreamedRequest | None = None
        try:
            served, asked = self._placed(received, len(message))
            asked.inference = self.inferences.start(served, asked)
        except Exception as error:
            (asked or self._asked(received, decoupled=False)).answer_refusal(error)
        else:
            if asked.inference is None:  # a codec thread decodes it
                self._keep(message)

    def _keep(self, message: Data) -> None:
        """Have a message wait; what waits is in flight, too."""
        self._unread.append(message)
        self._count(len(message))

    def _placed(self, received: ReceivedRequest, size: int) -> tuple[ServedModel, _StreamedRequest]:
        """The model of a message of so many bytes, and its place among the others."""
        served = find_model(self.inferences, received)
        asked = self._asked(received, decoupled=served.config.decoupled)
        asked.size = size
        self._count(size)
        return served, asked

    # -- messages that a codec thread decodes

    def _start_large(self, received: ReceivedRequest) -> None:
        if not self._unread:  # the stream was cancelled
            return
        asked: _StreamedRequest | None = None
        try:
            served, asked = self._placed(received, len(self._unread[0]))
            asked.is_large = True
            self.inferences.start(served, asked)
        except Exception as error:
            (asked or self._asked(received, decoupled=False)).answer_refusal(error)
            self._go_on()

    def decoded(self, asked: _StreamedRequest) -> None:
        """Continue after a codec thread has decoded a request, which was sent or refused."""
        if self._unread:
            self._go_on()
        elif asked.inference is not None:  # the stream was cancelled
            asked.inference.cancellation.cancel()

    def _unreadable(self, error: Exception) -> None:
        self._unread.clear()
        self.half_close()

    def _go_on(self) -> None:
        """Handle the messages behind the one that was decoded."""
        behind, self._unread = self._unread, deque()
        self._count(-len(behind.popleft()))
        while behind and not self._unread:
            message = behind.popleft()
            self._count(-len(message))
            self.receive(message)
        self._unread += behind
        if self._is_half_closed and not self._unread:
            self.half_close()

    def _asked(self, received: ReceivedRequest, *, decoupled: bool) -> _StreamedRequest:
        if decoupled:
            free = _DecoupledRequest(self, received)
            self._decoupled.add(free)
            return free
        ordered = _OrderedRequest(self, received)
        self._ordered.append(ordered)
        return ordered

    def backlog(self, backlogs: Backlogs) -> Backlog:
        """What waits for the client, of all requests to decoupled models."""
        if self._backlog is None:
            self._backlog = Backlog(backlogs, self._most_responses)
            self.call.watch(self._backlog)
        return self._backlog

    def _count(self, size: int) -> None:
        """So many bytes more, or less, are in flight: hold the client up while they are many."""
        self._asked_bytes += size
        count, held = len(self._ordered) + len(self._decoupled), self._is_held
        part = 0.5 if held else 1
        is_much = count >= _MOST_ASKED * part or self._asked_bytes >= _MOST_ASKED_BYTES * part
        if is_much is not held:
            self._is_held = is_much
            self.call.hold(held=is_much)

    def half_close(self) -> None:
        if self._unread:
            self._is_half_closed = True
            return
        self._is_closed = True
        self.advance()

    def cancel(self) -> None:
        self._is_closed = True
        self._unread.clear()
        asked: list[_StreamedRequest] = [*self._ordered, *self._decoupled]
        self._ordered.clear()
        self._decoupled.clear()
        for each in asked:
            if each.inference is not None:
                each.inference.cancellation.cancel()

    def advance(self) -> None:
        """Send the answers that nothing stands before any more."""
        while self._ordered and (answer := self._ordered[0].answer) is not None:
            first = self._ordered.popleft()
            self._count(-first.size)
            self._send(answer, first.failure)
        self._end_if_done()

    def send_from(
        self, asked: _DecoupledRequest, message: bytes, failure: ServerError | None
    ) -> None:
        """Send a message, unless the stream has been cancelled."""
        if asked in self._decoupled:
            self._send(message, failure)

    def leave(self, asked: _DecoupledRequest) -> None:
        """The last response of `asked` has been sent."""
        if asked in self._decoupled:
            self._decoupled.discard(asked)
            self._count(-asked.size)
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
    """One request of a stream; its kind decides when what it is answered with is sent."""

    __slots__ = ("_form", "_received", "_stream", "inference", "is_large", "size")

    forwards = True

    _form: ResponseForm

    def __init__(self, stream: StreamCall, received: ReceivedRequest) -> None:
        self._stream = stream
        self._received = received
        self.inference: Inference | None = None
        self.is_large = False
        self.size = 0  # of its message, if it got to its model

    def answer_refusal(self, error: Exception) -> None:
        """Answer a request that was not sent to its model. This never ends the stream."""
        if not isinstance(error, ServerError):
            error = described_defect(error)
        message = infer_proto_response.encode_refusal(self._received.request_id, error)
        self._answered(message, None, final=True)

    # -- the gateway's calls

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
        message = infer_proto_response.encode_failure(self._received, error, final=final)
        self._answered(message, error, final=final)

    def end(self) -> None:
        message = infer_proto_response.encode_empty(self._received)
        self._answered(message, None, final=True)

    @abstractmethod
    def _answered(self, message: bytes, failure: ServerError | None, *, final: bool) -> None:
        """Keep or send what it is answered with; `failure` is the error that the model gave."""


class _OrderedRequest(_StreamedRequest):
    """A request whose answer waits for those of the requests before it.

    `answer` is None until it is there. `failure` is the error that the model answered with.
    """

    __slots__ = ("answer", "failure")

    def __init__(self, stream: StreamCall, received: ReceivedRequest) -> None:
        super().__init__(stream, received)
        self.answer: bytes | None = None
        self.failure: ServerError | None = None

    def _answered(self, message: bytes, failure: ServerError | None, *, final: bool) -> None:
        self.inference = None
        # An error that follows the answer is told to nobody, as in Triton.
        if self.answer is None:
            self.answer, self.failure = message, failure
            self._stream.advance()


class _DecoupledRequest(_StreamedRequest):
    """A request to a decoupled model: its responses wait for no other request's."""

    __slots__ = ()

    def is_large_response(self, response: InferResponse) -> bool:
        return False  # of several responses the order would be lost

    def end(self) -> None:
        if infer_proto.wants_empty_final(self._received.message):
            super().end()
        else:
            self._leave()

    def _answered(self, message: bytes, failure: ServerError | None, *, final: bool) -> None:
        self._stream.send_from(self, message, failure)
        if final:
            self._leave()

    def _leave(self) -> None:
        self.inference = None
        self._stream.leave(self)
