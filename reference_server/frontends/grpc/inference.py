"""ModelInfer and ModelStreamInfer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from reference_server.codecs import proto_infer, proto_response, proto_wire
from reference_server.codecs.proto_wire import Data, ReceivedRequest
from reference_server.core.errors import ServerError, unsupported
from reference_server.core.ports import Clock
from reference_server.core.response import InferResponse
from reference_server.frontends.forwarding import HeaderForwarding
from reference_server.frontends.grpc.calls import Call, Method, described
from reference_server.frontends.grpc.inflight import Inference, Inferences
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.shared_memory import SharedMemory

#: With this metadata a model's error ends the stream with its status, instead of being a message.
_ERRORS_END_STREAM = "triton_grpc_error"
REFUSES_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


def methods(
    gateway: Gateway,
    shared_memory: SharedMemory,
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    forwarding: HeaderForwarding | None = None,
) -> Mapping[str, Method]:
    """The methods, by their names; `forwarding` makes metadata parameters."""
    inferences = Inferences(gateway, shared_memory, loop, clock, forwarding)
    return {
        "ModelInfer": Method(lambda call: _UnaryCall(inferences, call)),
        "ModelStreamInfer": Method(lambda call: _StreamCall(inferences, call), streams=True),
    }


class _UnaryCall:
    """A call of ModelInfer."""

    __slots__ = ("_call", "_inference", "_inferences")

    def __init__(self, inferences: Inferences, call: Call) -> None:
        self._inferences = inferences
        self._call = call
        self._inference: Inference | None = None

    def receive(self, message: Data) -> None:
        try:
            received = self._inferences.read(message)
            served = self._inferences.find(received)
            if served.config.decoupled:
                raise unsupported(REFUSES_DECOUPLED)
            self._inference = self._inferences.start(self._call, served, received, self._finish)
        except ServerError as error:
            self._call.end(error)
        except Exception as defect:  # a defect of ours must not leave the client waiting
            self._call.end(described(defect))

    def half_close(self) -> None:
        """Nothing follows the one message in any case."""

    def cancel(self) -> None:
        if self._inference is not None:
            self._inference.cancellation.cancel()

    def _finish(self, response: InferResponse) -> None:
        inference, self._inference = self._inference, None
        assert inference is not None
        try:
            parts = inference.encode(response)
        except ServerError as error:
            self._call.end(error)
        else:
            self._call.send(b"".join(parts))
            self._call.end()


class _StreamCall:
    """A call of ModelStreamInfer.

    Answers are sent in the order of the requests, but for those of decoupled models, which are sent
    as they come.
    """

    def __init__(self, inferences: Inferences, call: Call) -> None:
        self._inferences = inferences
        self._call = call
        self._errors_end = call.metadata(_ERRORS_END_STREAM) == "true"
        self._places: deque[_Place] = deque()
        self._flows: set[_Flow] = set()
        self._is_closed = False

    def receive(self, message: Data) -> None:
        if self._is_closed:
            return
        try:
            received = self._inferences.read(message)
        except ServerError:
            self.half_close()  # to the real server, what it cannot read is the end
            return
        asked: _Place | _Flow | None = None
        try:
            served = self._inferences.find(received)
            asked = self._asked(received, decoupled=served.config.decoupled)
            asked.inference = self._inferences.start(self._call, served, received, asked.finish)
        except ServerError as error:
            (asked or self._asked(received, decoupled=False)).refuse(error)
        except Exception as defect:
            (asked or self._asked(received, decoupled=False)).refuse(described(defect))

    def _asked(self, received: ReceivedRequest, *, decoupled: bool) -> _Place | _Flow:
        if decoupled:
            flow = _Flow(self, received)
            self._flows.add(flow)
            return flow
        place = _Place(self, received)
        self._places.append(place)
        return place

    def half_close(self) -> None:
        self._is_closed = True
        self.advance()

    def cancel(self) -> None:
        self._is_closed = True
        asked: list[_Place | _Flow] = [*self._places, *self._flows]
        self._places.clear()
        self._flows.clear()
        for each in asked:
            if each.inference is not None:
                each.inference.cancellation.cancel()

    def advance(self) -> None:
        """Send the answers that nothing stands before any more."""
        while self._places and (answer := self._places[0].answer) is not None:
            place = self._places.popleft()
            self._pass_on(answer, place.failure)
        self._end_if_done()

    def pass_on_from(self, flow: _Flow, message: bytes, failure: ServerError | None) -> None:
        """Send a message, unless the stream has been cancelled."""
        if flow in self._flows:
            self._pass_on(message, failure)

    def leave(self, flow: _Flow) -> None:
        """The last response of `flow` has been passed on."""
        self._flows.discard(flow)
        self._end_if_done()

    def _pass_on(self, message: bytes, failure: ServerError | None) -> None:
        if failure is not None and self._errors_end:
            self._call.end(failure)
            self.cancel()
        else:
            self._call.send(message)

    def _end_if_done(self) -> None:
        if self._is_closed and not self._places and not self._flows:
            self._call.end()


class _Place:
    """A request's place in the order of its stream; `answer` is None until it is there.

    `failure` is the error that the model answered with.
    """

    __slots__ = ("_received", "_stream", "answer", "failure", "inference")

    def __init__(self, stream: _StreamCall, received: ReceivedRequest) -> None:
        self._stream = stream
        self._received = received
        self.inference: Inference | None = None
        self.answer: bytes | None = None
        self.failure: ServerError | None = None

    def refuse(self, error: ServerError) -> None:
        self.answer = proto_response.encode_refusal(self._received.message.id, error)
        self._stream.advance()

    def finish(self, response: InferResponse) -> None:
        inference, self.inference = self.inference, None
        assert inference is not None
        self.answer, self.failure = _message(inference, self._received, response)
        self._stream.advance()


class _Flow:
    """A request to a decoupled model: its responses wait for no other request's."""

    __slots__ = ("_received", "_stream", "inference")

    def __init__(self, stream: _StreamCall, received: ReceivedRequest) -> None:
        self._stream = stream
        self._received = received
        self.inference: Inference | None = None

    def refuse(self, error: ServerError) -> None:
        message = proto_response.encode_refusal(self._received.message.id, error)
        self._stream.pass_on_from(self, message, None)
        self._stream.leave(self)

    def finish(self, response: InferResponse) -> None:
        assert self.inference is not None
        message, failure = _message(self.inference, self._received, response)
        if not response.empty or proto_infer.wants_empty_final(self._received.message):
            self._stream.pass_on_from(self, message, failure)
        if response.final:
            self.inference = None
            self._stream.leave(self)


def _message(
    inference: Inference, received: ReceivedRequest, response: InferResponse
) -> tuple[bytes, ServerError | None]:
    """What a stream says of a response, and the error that this is, if it is one."""
    if response.empty:
        inference.end()
        return proto_response.encode_empty(received.message), None
    try:
        parts = inference.encode(response, final=response.final)
        return b"".join(proto_wire.streamed(parts)), None
    except ServerError as error:
        return proto_response.encode_failure(received.message, error, final=response.final), error
