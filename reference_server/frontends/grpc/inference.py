"""The inference methods, and the calls of ModelInfer. Used on the event loop's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritonclient.grpc.service_pb2 import ModelInferRequest

from reference_server.codecs import infer_proto_response, proto_wire
from reference_server.codecs.infer_proto import InferMessageDecoder
from reference_server.codecs.inference import ResponseForm
from reference_server.codecs.proto_fields import Data
from reference_server.codecs.proto_wire import Parts, ReceivedRequest
from reference_server.core.backlog import Backlogs
from reference_server.core.errors import ServerError
from reference_server.core.profiles import TritonProfile
from reference_server.core.request import InferRequest, InferResponse
from reference_server.frontends.grpc.calls import Call, Method, described_defect
from reference_server.frontends.grpc.streaming import StreamCall, find_model, log_failure
from reference_server.gateway.inference import Inference, Inferences, RunOnThread, TraceEvents
from reference_server.repository.versions import ServedModel

TRACE_EVENTS = TraceEvents(
    "GRPC_WAITREAD_START",
    "GRPC_WAITREAD_END",
    "GRPC_SEND_START",
    "GRPC_SEND_END",
    traces_refusals=False,
)
#: Replaces a call's message after the message was passed to its model or rejected.
_NOTHING = ReceivedRequest(ModelInferRequest(), "", [])
REFUSES_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


def methods(
    inferences: Inferences, run: RunOnThread, profile: TritonProfile, most_responses: int
) -> Mapping[str, Method]:
    """Return the methods by name.

    `run` decodes large messages on a codec thread. At most `most_responses` responses of decoupled
    models are queued for a stream's client.
    """
    decoder = InferMessageDecoder(profile)
    return {
        "ModelInfer": Method(lambda call: _UnaryCall(inferences, decoder, run, call)),
        "ModelStreamInfer": Method(
            lambda call: StreamCall(inferences, decoder, run, call, most_responses), streams=True
        ),
    }


class _UnaryCall:
    """A call of ModelInfer."""

    __slots__ = (
        *("_call", "_decoder", "_form", "_inference", "_inferences", "_received", "_run"),
        "is_large",
    )

    end = None
    forwards = True
    _form: ResponseForm

    def __init__(
        self, inferences: Inferences, decoder: InferMessageDecoder, run: RunOnThread, call: Call
    ) -> None:
        self._inferences = inferences
        self._decoder = decoder
        self._run = run
        self._call = call
        self._received = _NOTHING
        self._inference: Inference | None = None
        self.is_large = False

    # -- called by the transport

    def receive(self, message: Data) -> None:
        self.is_large = proto_wire.is_large(message)
        if self.is_large:
            self._run(lambda: self._decoder.read(message), self._start, self.refuse)
            return
        try:
            received = self._decoder.read(message)
        except Exception as error:
            self.refuse(error)
        else:
            self._start(received)

    def _start(self, received: ReceivedRequest) -> None:
        self._received = received
        try:
            started = self._inferences.start(self.find(), self)
        except Exception as error:
            self.refuse(error)
        else:
            if started is not None:
                self.started(started)

    def half_close(self) -> None:
        """Ignore it: a unary call has one message."""

    def cancel(self) -> None:
        if self._inference is not None:
            self._inference.cancellation.cancel()

    # -- the gateway's calls

    def find(self) -> ServedModel:
        return find_model(self._inferences, self._received, refuses_decoupled=REFUSES_DECOUPLED)

    def started(self, inference: Inference) -> None:
        self._received = _NOTHING  # from now on, only the request refers to its tensors
        self._inference = inference

    def refuse(self, error: Exception) -> None:
        # A defect of the server must not leave the client waiting.
        known = error if isinstance(error, ServerError) else described_defect(error)
        if self._received is not _NOTHING:  # otherwise the message is unreadable
            log_failure(self._received, known)
        self._received = _NOTHING
        self._call.end(known)

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        request, self._form = self._decoder.decode(
            served.config.signature, self._received, inference, inference
        )
        return request

    def fields(self) -> Sequence[tuple[bytes, bytes]]:
        return self._call.fields()

    def encode(self, served: ServedModel, response: InferResponse) -> Parts:
        return infer_proto_response.encode(
            response, self._form, served.config.signature, served.labels
        )

    def backlog(self, backlogs: Backlogs) -> None:
        """Ignore it: the model sends one response."""

    def is_large_response(self, response: InferResponse) -> bool:
        return self._form.is_large_response(response.outputs)

    def reply(self, body: Parts, *, final: bool) -> None:
        self._inference = None  # it refers to this call: a cycle would wait for a collection
        self._call.send(*body)
        self._call.end()

    def fail(self, error: ServerError, *, final: bool) -> None:
        self._inference = None
        self._call.end(error)
