"""A request over gRPC on its way: from its message to its model, and from there to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from reference_server.codecs import proto_models, proto_response
from reference_server.codecs.infer_options import ResponseForm
from reference_server.codecs.proto_memo import RequestMemo
from reference_server.codecs.proto_wire import Data, Parts, ReceivedRequest
from reference_server.core.errors import ServerError
from reference_server.core.ports import Clock
from reference_server.core.request import Cancellation, RequestTrace
from reference_server.core.response import InferResponse
from reference_server.frontends.forwarding import HeaderForwarding
from reference_server.frontends.grpc.calls import Call, described
from reference_server.frontends.mailbox import Mailbox
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.shared_memory import RegionLease, SharedMemory
from reference_server.repository.versions import ServedModel


class Inferences:
    """Finds models, and sends them requests. On the loop's thread."""

    def __init__(
        self,
        gateway: Gateway,
        shared_memory: SharedMemory,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._gateway = gateway
        self._shared_memory = shared_memory
        self._clock = clock
        self._forwarding = forwarding
        self._memo = RequestMemo()
        self._answers: Mailbox[tuple[Inference, InferResponse]] = Mailbox(
            loop, lambda answer: answer[0].deliver(answer[1])
        )

    def read(self, message: Data) -> ReceivedRequest:
        """The request in a message. Raises ServerError INTERNAL if it is none."""
        return self._memo.read(message)

    def find(self, received: ReceivedRequest) -> ServedModel:
        """The model that is asked. Raises ServerError."""
        version = proto_models.model_version(received.message.model_version)
        return self._gateway.find(received.message.model_name, version)

    def start(
        self,
        call: Call,
        served: ServedModel,
        received: ReceivedRequest,
        deliver: Callable[[InferResponse], None],
    ) -> Inference:
        """Send a request of `call` to its model; `deliver` gets the answers, later.

        Raises ServerError.
        """
        received_ns = self._clock.monotonic_ns()
        trace = self._gateway.tracing.sample(served.config.name)
        if trace is not None:
            trace.stamp("GRPC_WAITREAD_START", received_ns)
            trace.stamp("GRPC_WAITREAD_END", received_ns)
        regions = self._shared_memory.lease()
        inference = Inference(served, regions, deliver, self._answers)
        try:
            request, inference.form = self._memo.decode(
                served.config.signature, received, inference, regions
            )
            request.received_ns = received_ns
            request.model_version = served.version
            request.trace = trace
            if self._forwarding is not None:
                request.parameters = self._forwarding.added(request.parameters, call.fields())
            inference.trace, inference.cancellation = trace, request.cancellation
            served.infer(request)
        except BaseException:
            # The trace is dropped: unlike over HTTP, nothing is told of a request that is refused.
            regions.release()
            raise
        return inference


class Inference:
    """A request on its way: the sink that its responses come to.

    It does not know the request, which knows it: a cycle would keep the inputs.
    """

    __slots__ = ("_answers", "_regions", "_served", "cancellation", "deliver", "form", "trace")

    cancellation: Cancellation
    form: ResponseForm
    trace: RequestTrace | None

    def __init__(
        self,
        served: ServedModel,
        regions: RegionLease,
        deliver: Callable[[InferResponse], None],
        answers: Mailbox[tuple[Inference, InferResponse]],
    ) -> None:
        self._served = served
        self._regions = regions
        self._answers = answers
        self.deliver = deliver

    def send(self, response: InferResponse) -> None:
        """Bring `response` to `deliver` on the loop's thread. Any thread."""
        self._answers.post((self, response))

    def encode(self, response: InferResponse, *, final: bool | None = None) -> Parts:
        """The message of `response`. Raises ServerError, maybe that of the response."""
        served, trace = self._served, self.trace
        if trace is not None:
            trace.stamp("GRPC_SEND_START")
        try:
            if response.error is not None:
                raise response.error
            return proto_response.encode(
                response, self.form, served.config.signature, served.labels, final=final
            )
        except ServerError:
            raise
        except Exception as defect:  # as everywhere in the frontend: nobody is left waiting
            raise described(defect) from defect
        finally:
            if trace is not None:
                trace.stamp("GRPC_SEND_END")
            if response.final:
                self.end()

    def end(self) -> None:
        """Nothing more will be sent. Before the last reply: its reader may unregister at once."""
        self._regions.release()
        if self.trace is not None:
            self.trace.close()
