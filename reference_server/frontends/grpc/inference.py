"""ModelInfer and ModelStreamInfer. All on the loop's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from tritonclient.grpc.service_pb2 import ModelInferRequest

from reference_server.codecs import (
    infer_proto,
    infer_proto_response,
    management_proto,
    proto_wire,
)
from reference_server.codecs.infer_proto import InferMessageDecoder
from reference_server.codecs.proto_wire import Data, ReceivedRequest
from reference_server.codecs.response_forms import ResponseForm
from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import ServerError
from reference_server.core.profiles import TritonProfile
from reference_server.core.request import InferRequest, InferResponse
from reference_server.frontends.grpc.calls import Call, Method, described_defect
from reference_server.gateway.inference import Apart, Inference, Inferences, TraceEvents
from reference_server.repository.versions import ServedModel

TRACE_EVENTS = TraceEvents(
    "GRPC_WAITREAD_START",
    "GRPC_WAITREAD_END",
    "GRPC_SEND_START",
    "GRPC_SEND_END",
    tells_refusals=False,
)
#: With this metadata a model's error ends the stream with its status, instead of being a message.
_ERRORS_END_STREAM = "triton_grpc_error"
#: What a call keeps of its message once that is sent to its model, or refused.
_NOTHING = ReceivedRequest(ModelInferRequest(), [])
#: Requests of one stream, and bytes of their messages, that may be in flight; who has asked for
#: more asks for no more until half of them are answered.
_MOST_ASKED = 1024
_MOST_ASKED_BYTES = 1 << 26
REFUSES_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


def methods(
    inferences: Inferences, run: Apart, profile: TritonProfile, most_responses: int
) -> Mapping[str, Method]:
    """The methods, by their names. `run` does what would hold up the loop.

    Of a stream's decoupled models `most_responses` may wait for the client.
    """
    decoder = InferMessageDecoder(profile)
    return {
        "ModelInfer": Method(lambda call: _UnaryCall(inferences, decoder, run, call)),
        "ModelStreamInfer": Method(
            lambda call: _StreamCall(inferences, decoder, call, most_responses), streams=True
        ),
    }


def _find(
    inferences: Inferences, received: ReceivedRequest, *, refuses_decoupled: str = ""
) -> ServedModel:
    message = received.message
    version = management_proto.model_version(message.model_version)
    return inferences.find(message.model_name, version, refuses_decoupled=refuses_decoupled)


class _UnaryCall:
    """A call of ModelInfer."""

    __slots__ = ("_call", "_decoder", "_form", "_inference", "_inferences", "_received", "_run")

    end = None
    _form: ResponseForm

    def __init__(
        self, inferences: Inferences, decoder: InferMessageDecoder, run: Apart, call: Call
    ) -> None:
        self._inferences = inferences
        self._decoder = decoder
        self._run = run
        self._call = call
        self._received = _NOTHING
        self._inference: Inference | None = None

    # -- the transport's calls

    def receive(self, message: Data) -> None:
        if self._decoder.takes_long(message):
            self._run(lambda: self._decoder.read(message), self._start_later, self._failed)
            return
        try:
            self._received = self._decoder.read(message)
            self._started(self._inferences.start(self._find(), self))
        except Exception as error:
            self._failed(error)

    def _find(self) -> ServedModel:
        return _find(self._inferences, self._received, refuses_decoupled=REFUSES_DECOUPLED)

    def _start_later(self, received: ReceivedRequest) -> None:
        self._received = received
        try:
            self._inferences.start_later(
                self._find(), self, self._find, self._started, self._failed
            )
        except Exception as error:
            self._failed(error)

    def _started(self, inference: Inference) -> None:
        self._received = _NOTHING  # its tensors are the request's alone
        self._inference = inference

    def _failed(self, error: Exception) -> None:
        self._received = _NOTHING
        # A defect of ours must not leave the client waiting.
        self._call.end(error if isinstance(error, ServerError) else described_defect(error))

    def half_close(self) -> None:
        """Nothing follows the one message in any case."""

    def cancel(self) -> None:
        if self._inference is not None:
            self._inference.cancellation.cancel()

    # -- the gateway's calls

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        request, self._form = self._decoder.decode(
            served.config.signature, self._received, inference, inference
        )
        return request

    def fields(self) -> Sequence[tuple[bytes, bytes]]:
        return self._call.fields()

    def encode(self, served: ServedModel, response: InferResponse) -> bytes:
        parts = infer_proto_response.encode(
            response, self._form, served.config.signature, served.labels
        )
        return b"".join(parts)

    def backlog(self, backlogs: Backlogs) -> None:
        """Its model sends one response."""

    def takes_long(self, response: InferResponse) -> bool:
        return False  # to join bytes

    def reply(self, body: bytes, *, final: bool) -> None:
        self._inference = None  # which holds this call: together they would wait for a collection
        self._call.send(body)
        self._call.end()

    def fail(self, error: ServerError, *, final: bool) -> None:
        self._inference = None
        self._call.end(error)


class _StreamCall:
    """A call of ModelStreamInfer.

    Answers are sent in the order of the requests, but for those of decoupled models, which are sent
    as they come.
    """

    def __init__(
        self,
        inferences: Inferences,
        decoder: InferMessageDecoder,
        call: Call,
        most_responses: int,
    ) -> None:
        self.call = call
        self.decoder = decoder
        self._inferences = inferences
        self._most_responses = most_responses
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
        try:
            received = self.decoder.read(message)
        except ServerError:
            self.half_close()  # to the real server, what it cannot read is the end
            return
        asked: _StreamedRequest | None = None
        try:
            served = _find(self._inferences, received)
            asked = self._asked(received, decoupled=served.config.decoupled)
            asked.size = len(message)
            self._count(asked.size)
            asked.inference = self._inferences.start(served, asked)
        except ServerError as error:
            (asked or self._asked(received, decoupled=False)).refuse(error)
        except Exception as defect:
            (asked or self._asked(received, decoupled=False)).refuse(described_defect(defect))

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
        self._is_closed = True
        self.advance()

    def cancel(self) -> None:
        self._is_closed = True
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


class _StreamedRequest:
    """One request of a stream; its kind decides when what it is answered with is sent."""

    __slots__ = ("_form", "_received", "_stream", "inference", "size")

    _form: ResponseForm

    def __init__(self, stream: _StreamCall, received: ReceivedRequest) -> None:
        self._stream = stream
        self._received = received
        self.inference: Inference | None = None
        self.size = 0  # of its message, if it got to its model

    def refuse(self, error: ServerError) -> None:
        """Answer what was refused before it was scheduled. This never ends the stream."""
        message = infer_proto_response.encode_refusal(self._received.message.id, error)
        self._answered(message, None, final=True)

    # -- the gateway's calls

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

    def takes_long(self, response: InferResponse) -> bool:
        return False  # to join bytes

    def reply(self, body: bytes, *, final: bool) -> None:
        self._answered(body, None, final=final)

    def fail(self, error: ServerError, *, final: bool) -> None:
        message = infer_proto_response.encode_failure(self._received.message, error, final=final)
        self._answered(message, error, final=final)

    def end(self) -> None:
        message = infer_proto_response.encode_empty(self._received.message)
        self._answered(message, None, final=True)

    def _answered(self, message: bytes, failure: ServerError | None, *, final: bool) -> None:
        raise NotImplementedError


class _OrderedRequest(_StreamedRequest):
    """A request whose answer waits for those of the requests before it.

    `answer` is None until it is there. `failure` is the error that the model answered with.
    """

    __slots__ = ("answer", "failure")

    def __init__(self, stream: _StreamCall, received: ReceivedRequest) -> None:
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
