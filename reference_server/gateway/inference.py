"""The inference operation, from the model that a client names to the last response.

    served = inferences.find(name, version)
    inferences.start(served, call)

Everything that does not depend on the protocol is done here: find the model, lease shared memory,
forward headers, trace the request, send it to its scheduler, and clean up. A frontend's
`InferenceCall` translates between bytes and values.

Large requests and responses are decoded and encoded on a codec thread, so that the event loop stays
responsive. `Inferences.start` and `Inference.deliver` decide that; nothing else depends on it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from reference_server.core import gil
from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import ServerError, StringClasses, internal, unsupported
from reference_server.core.ports import Clock, OutputBuffer
from reference_server.core.request import Cancellation, InferRequest, InferResponse, RequestTrace
from reference_server.gateway.forwarding import HeaderForwarding
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.shared_memory import RegionLease, SharedMemory
from reference_server.repository.versions import ServedModel

log = logging.getLogger(__name__)

_TWO_RESPONSES = "expected a single response, got 2"
BodyT = TypeVar("BodyT")


class TraceEvents(NamedTuple):
    """The names that a frontend's traces give to the start and end of a request and a response.

    `traces_refusals`: whether a refused request leaves a trace.
    """

    receive_start: str
    receive_end: str
    send_start: str
    send_end: str
    traces_refusals: bool


class InferenceCall(Protocol[BodyT]):
    """A frontend's side of one inference.

    All methods are called on the event loop's thread, except that `decode` and `encode` of large
    messages are called on a codec thread.
    """

    @property
    def is_large(self) -> bool:
        """True if the body is too large to be decoded on the event loop."""

    def find(self) -> ServedModel:
        """Find the model that the request names. Raises ServerError."""

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        """Decode the request; `inference` is its sink and its regions. Raises ServerError."""

    def started(self, inference: Inference) -> None:
        """Called when a request that a codec thread has decoded was sent to its model."""

    def refuse(self, error: Exception) -> None:
        """Answer a request that fails after `Inferences.start`, before it is sent to its model."""

    def fields(self) -> Iterable[tuple[bytes, bytes]]:
        """The headers or metadata."""

    @property
    def forwards(self) -> bool:
        """True if headers may be forwarded to the model."""

    def encode(self, served: ServedModel, response: InferResponse) -> BodyT:
        """Encode a response without error. Raises ServerError."""

    def is_large_response(self, response: InferResponse) -> bool:
        """Return True if a codec thread must call `encode`."""

    def reply(self, body: BodyT, *, final: bool) -> None:
        """Send an encoded response; `final` if no response follows."""

    def fail(self, error: ServerError, *, final: bool) -> None:
        """Send an error of the model, or an error that `encode` raised."""

    def backlog(self, backlogs: Backlogs) -> Backlog | None:
        """The queue of responses to the client, for a decoupled model; None otherwise."""

    @property
    def end(self) -> Callable[[], None] | None:
        """The function that handles an empty response, which ends a stream of responses.

        None where exactly one response is expected; then an empty response is that response.
        """


#: Calls the first function on another thread. Then, on the event loop's thread, calls the second
#: function with the result, or the third function with the exception.
RunOnThread = Callable[
    [Callable[[], Any], Callable[[Any], None], Callable[[Exception], None]], None
]


#: A response of an inference; None stands for the first waiting response.
Posted = tuple["Inference", InferResponse | None]


class _TooLarge(Exception):
    """The inputs are too large to be read on the event loop."""


class Inferences:
    """Finds models, and sends them requests. Used on the event loop's thread.

    `post` brings a response from any thread to `deliver` on the event loop's thread.
    """

    def __init__(
        self,
        gateway: Gateway,
        shared_memory: SharedMemory,
        clock: Clock,
        events: TraceEvents,
        post: Callable[[Posted], None],
        run_on_codec_thread: RunOnThread,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._run_on_codec_thread = run_on_codec_thread
        self._gateway = gateway
        self._shared_memory = shared_memory
        self._clock = clock
        self._events = events
        self._post = post
        self._forwarding = forwarding

    def find(self, name: str, version: int, *, refuses_decoupled: str = "") -> ServedModel:
        """Return the loaded model.

        Raises:
            ServerError: The model is not loaded; or it is decoupled, and `refuses_decoupled` is the
                text of this error.
        """
        served = self._gateway.find(name, version)
        if refuses_decoupled and served.config.decoupled:
            raise unsupported(refuses_decoupled)
        return served

    def start(self, served: ServedModel, call: InferenceCall[Any]) -> Inference | None:
        """Decode the request of `call` and send it to its model.

        A codec thread decodes the request if its body is large, if its inputs take many bytes of
        shared memory, or if very many strings must be counted.

        Returns:
            The inference, whose responses are given to `call`. None if a codec thread decodes the
            request; `call.started` or `call.refuse` is called later.

        Raises:
            ServerError: The request is refused. No method of `call` is called any more.
        """
        inference = self._begin(served, call)
        if call.is_large:
            self._decode_on_codec_thread(inference, served, call)
            return None
        try:
            request = call.decode(served, inference)
            for tensor in request.inputs.values():
                if tensor.has_uncounted_strings:
                    raise _TooLarge
        except _TooLarge:
            inference.release()  # the codec thread decodes the request from its start
            self._decode_on_codec_thread(inference, served, call)
            return None
        except BaseException:
            inference.refused()
            raise
        self._send(inference, request)
        return inference

    def _decode_on_codec_thread(
        self, inference: Inference, served: ServedModel, call: InferenceCall[Any]
    ) -> None:
        inference.on_codec_thread = True

        def decode() -> InferRequest:
            request = call.decode(served, inference)
            for tensor in request.inputs.values():
                tensor.count_strings()
            return request

        def send(request: InferRequest) -> None:
            try:
                found = call.find()
            except Exception as error:
                refuse(error)
                return
            try:
                started: Inference | None = inference
                if found is served:
                    self._send(inference, request)
                else:  # another model was loaded under this name
                    inference.refused()
                    started = self.start(found, call)
            except Exception as error:
                call.refuse(error)
            else:
                if started is not None:
                    call.started(started)

        def refuse(error: Exception) -> None:
            inference.refused()
            call.refuse(error)

        self._run_on_codec_thread(decode, send, refuse)

    def _begin(self, served: ServedModel, call: InferenceCall[Any]) -> Inference:
        """Make the inference of a request that has been received but not decoded."""
        received_ns = self._clock.monotonic_ns()
        trace: RequestTrace | None = None
        # Sample before decoding: a request that is refused later was received, too.
        tracing = self._gateway.tracing
        if tracing.is_on:
            trace = tracing.sample(served.config.name, call.fields)
            if trace is not None:
                trace.stamp(self._events.receive_start, received_ns)
                trace.stamp(self._events.receive_end, received_ns)
        # Make the inference before the request: decoding leases regions through it.
        return Inference(
            *(served, call, received_ns, trace, self._events),
            *(self._shared_memory, self._post, self._run_on_codec_thread),
        )

    def _send(self, inference: Inference, request: InferRequest) -> None:
        """Send a decoded request to its model. Raises ServerError if it is refused."""
        try:
            inference.send_request(request, self._forwarding, self._gateway.backlogs)
        except BaseException:
            inference.refused()
            raise


class Inference:
    """One request in flight: the sink of its responses, and the shared memory that it uses.

    It has no reference to the request, which refers to it: a cycle would keep the inputs alive.
    """

    __slots__ = (
        "_behind",
        "_call",
        "_events",
        "_has_answer",
        "_is_encoding",
        "_is_posted",
        "_lease",
        "_post",
        "_read_bytes",
        "_received_ns",
        "_run_on_codec_thread",
        "_served",
        "_shared_memory",
        "_trace",
        "backlog",
        "cancellation",
        "on_codec_thread",
    )

    cancellation: Cancellation
    #: Whether a codec thread decodes the request.
    on_codec_thread: bool

    def __init__(
        self,
        served: ServedModel,
        call: InferenceCall[Any],
        received_ns: int,
        trace: RequestTrace | None,
        events: TraceEvents,
        shared_memory: SharedMemory,
        post: Callable[[Posted], None],
        run_on_codec_thread: RunOnThread,
    ) -> None:
        self._run_on_codec_thread = run_on_codec_thread
        self.backlog: Backlog | None = None
        self._served = served
        self._call = call
        self._received_ns = received_ns
        self._trace = trace
        self._events = events
        self._shared_memory = shared_memory
        self._lease: RegionLease | None = None  # most requests name no region
        self._post = post
        self._has_answer = False
        # The waiting responses, in order: of a stream, or behind a response that a codec thread
        # encodes.
        self._behind: deque[InferResponse] | None = None
        self._is_posted = False  # the first waiting response is posted
        self._is_encoding = False  # on a codec thread
        self._read_bytes = 0  # of shared memory
        self.on_codec_thread = False

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        if not self.on_codec_thread:
            self._read_bytes += byte_size
            if gil.is_long(shared_bytes=self._read_bytes):
                raise _TooLarge
        return self._leased().read(region, offset, byte_size)

    def output_buffer(self, region: str, offset: int, byte_size: int) -> OutputBuffer:
        return self._leased().output_buffer(region, offset, byte_size)

    def _leased(self) -> RegionLease:
        if self._lease is None:
            self._lease = self._shared_memory.lease()
        return self._lease

    def send(self, response: InferResponse) -> None:
        if self.backlog is None:
            self._post((self, response))
            return
        if self.backlog.is_closed and not response.final:
            return  # no client reads it, and no limit stops the model
        assert self._behind is not None
        self.backlog.add(response.outputs)
        # The event loop's mailbox gets one response of a stream at a time: thousands would delay
        # the responses of all other clients.
        self._behind.append(response)
        if not self._is_posted:
            self._is_posted = True
            self._post((self, None))

    def send_request(
        self, request: InferRequest, forwarding: HeaderForwarding | None, backlogs: Backlogs
    ) -> None:
        """Send the request to its model, with the forwarded headers."""
        served = self._served
        request.received_ns = self._received_ns
        request.model_version = served.version
        request.trace = self._trace
        if forwarding is not None and self._call.forwards:
            request.parameters = forwarding.added(request.parameters, self._call.fields())
        self.cancellation = request.cancellation
        if served.config.decoupled:
            self.backlog = self._call.backlog(backlogs)
            if self.backlog is not None:
                self._behind = deque()
            request.cancellation.backlog = self.backlog
        served.infer(request)

    def refused(self) -> None:
        """Clean up after a request that was not sent to its model."""
        self.release()
        # Over gRPC the trace is dropped, as in Triton.
        if self._trace is not None and self._events.traces_refusals:
            self._trace.close()

    def deliver(self, response: InferResponse) -> None:
        """Pass a response to the call; clean up after the last response. On the loop's thread."""
        if self._behind is None:
            self._deliver(response)
        else:
            self._behind.append(response)

    def deliver_waiting(self) -> None:
        """Deliver the first waiting response."""
        # Both threads may post for the same response: the second call then comes without a waiting
        # response, or while an earlier response is encoded.
        if self._behind and not self._is_encoding:
            self._deliver(self._behind.popleft())

    def _deliver(self, response: InferResponse) -> None:
        call, trace = self._call, self._trace
        is_end = response.empty and call.end is not None
        is_surplus = call.end is None and not response.final
        if not is_end and not is_surplus:
            if trace is not None:
                trace.stamp(self._events.send_start)
            if response.error is None and call.is_large_response(response):
                if self._behind is None:
                    self._behind = deque()
                self._is_encoding = True
                self._run_on_codec_thread(
                    lambda: self._encode(response),
                    lambda encoded: self._resume(response, *encoded),
                    lambda defect: self._resume(response, None, internal(str(defect))),
                )
                return
        try:
            if is_end:
                self._end(response)
            elif is_surplus:
                self._has_answer = True  # another response follows, which is one too many
            else:
                self._answer(response, *self._encode(response))
        finally:
            self._delivered()

    def _end(self, response: InferResponse) -> None:
        self.release()
        assert self._call.end is not None
        self._call.end()
        if self._trace is not None and response.final:
            self._trace.close()

    def _resume(self, response: InferResponse, body: object, error: ServerError | None) -> None:
        """Answer after a codec thread has encoded a response."""
        self._is_encoding = False
        try:
            self._answer(response, body, error)
        finally:
            self._delivered()

    def _delivered(self) -> None:
        """Count a response as delivered, and schedule the next one that waits behind it."""
        if self.backlog is not None:
            self.backlog.handled()
        if not self._behind:
            self._is_posted = False
            if self.backlog is None:
                self._behind = None
        if self._behind:  # or a response was queued before the flag was cleared
            # Through the mailbox, whose share of a loop iteration is limited.
            self._is_posted = True
            self._post((self, None))

    def _encode(self, response: InferResponse) -> tuple[object, ServerError | None]:
        """Return the body of the response, or its error."""
        if self._has_answer:
            return None, internal(_TWO_RESPONSES)
        if response.error is not None:
            return None, response.error
        try:
            return self._call.encode(self._served, response), None
        except StringClasses as fault:
            self._served.report("classify-strings")
            return None, fault
        except ServerError as fault:
            return None, fault
        except Exception as defect:  # a defect of the server must not leave the client waiting
            log.exception("cannot encode a response of model %s", response.model_name)
            return None, internal(f"{type(defect).__name__}: {defect}")

    def _answer(self, response: InferResponse, body: object, error: ServerError | None) -> None:
        if response.final:
            self.release()  # before the reply: its receiver may unregister the region at once
        if error is None:
            self._call.reply(body, final=response.final)
        else:
            self._call.fail(error, final=response.final)
        if self._trace is not None:
            self._trace.stamp(self._events.send_end)
            if response.final:
                self._trace.close()

    def release(self) -> None:
        """Release the shared memory."""
        if self._lease is not None:
            self._lease.release()


def deliver(posted: Posted) -> None:
    """Handle a response that an `Inference` has posted; on the event loop's thread."""
    inference, response = posted
    if response is None:
        inference.deliver_waiting()
    else:
        inference.deliver(response)
