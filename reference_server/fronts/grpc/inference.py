"""ModelInfer and ModelStreamInfer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from reference_server.codecs import proto_response, proto_wire
from reference_server.codecs.proto_wire import ReceivedRequest
from reference_server.core.clock import Clock
from reference_server.core.errors import ServerError, unsupported
from reference_server.core.response import InferResponse
from reference_server.fronts.grpc.calls import Call, Method, described
from reference_server.fronts.grpc.inflight import Inference, Inferences
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.shared_memory import SharedMemory

#: With this metadata a model's error ends the stream with its status, instead of being a message.
_ERRORS_END_STREAM = "triton_grpc_error"
_REFUSES_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


def methods(
    gateway: Gateway, shared_memory: SharedMemory, loop: asyncio.AbstractEventLoop, clock: Clock
) -> Mapping[str, Method]:
    """The methods, by their names."""
    inferences = Inferences(gateway, shared_memory, loop, clock)
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

    def receive(self, message: bytes) -> None:
        try:
            received = proto_wire.read_request(message)
            served = self._inferences.find(received)
            if served.config.decoupled:
                raise unsupported(_REFUSES_DECOUPLED)
            self._inference = self._inferences.start(served, received, self._finish)
        except ServerError as error:
            self._call.end(error)
        except Exception as defect:  # a defect of ours must not leave the client waiting
            self._call.end(described(defect))

    def half_close(self) -> None:
        """Nothing follows the one message in any case."""

    def cancel(self) -> None:
        if self._inference is not None:
            self._inference.request.cancellation.cancel()

    def _finish(self, response: InferResponse) -> None:
        assert self._inference is not None
        try:
            parts = self._inference.encode(response)
        except ServerError as error:
            self._call.end(error)
        else:
            self._call.send(b"".join(parts))
            self._call.end()


class _StreamCall:
    """A call of ModelStreamInfer. Answers are sent in the order of the requests."""

    def __init__(self, inferences: Inferences, call: Call) -> None:
        self._inferences = inferences
        self._call = call
        self._errors_end = call.metadata(_ERRORS_END_STREAM) == "true"
        self._places: deque[_Place] = deque()
        self._is_closed = False

    def receive(self, message: bytes) -> None:
        if self._is_closed:
            return
        try:
            received = proto_wire.read_request(message)
        except ServerError:
            self.half_close()  # to the real server, what it cannot read is the end
            return
        place = _Place(self, received)
        self._places.append(place)
        try:
            served = self._inferences.find(received)
            place.inference = self._inferences.start(served, received, place.finish)
        except ServerError as error:
            place.refuse(error)
        except Exception as defect:
            place.refuse(described(defect))

    def half_close(self) -> None:
        self._is_closed = True
        self.advance()

    def cancel(self) -> None:
        self._is_closed = True
        while self._places:
            self._places.popleft().cancel()

    def advance(self) -> None:
        """Send the answers that nothing stands before any more."""
        while self._places and (answer := self._places[0].answer) is not None:
            place = self._places.popleft()
            if place.failure is not None and self._errors_end:
                self._call.end(place.failure)
                self.cancel()
                return
            self._call.send(answer)
        if self._is_closed and not self._places:
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
        assert self.inference is not None
        try:
            parts = self.inference.encode(response, final=response.final)
            self.answer = b"".join(proto_wire.streamed(parts))
        except ServerError as error:
            self.failure = error
            self.answer = proto_response.encode_failure(
                self._received.message, error, final=response.final
            )
        self._stream.advance()

    def cancel(self) -> None:
        if self.inference is not None:
            self.inference.request.cancellation.cancel()
