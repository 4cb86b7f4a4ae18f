"""The inference operation: from the model that a client names to the last response.

    served = inferences.find(name, version)
    inference = inferences.start(served, call)

All that does not depend on the wire is done here, once: the model is found, shared memory leased,
headers forwarded, the request traced, sent to its scheduler and cleaned up after. A frontend's
`InferenceCall` only translates between bytes and values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import ServerError, internal, unsupported
from reference_server.core.ports import Clock, OutputBuffer
from reference_server.core.request import (
    Cancellation,
    InferRequest,
    InferResponse,
    RequestTrace,
)
from reference_server.gateway.forwarding import HeaderForwarding
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.shared_memory import RegionLease, SharedMemory
from reference_server.repository.versions import ServedModel

log = logging.getLogger(__name__)

_TWO_RESPONSES = "expected a single response, got 2"
BodyT = TypeVar("BodyT")


class TraceEvents(NamedTuple):
    """What a frontend's trace calls the beginnings and ends of a request and of each response.

    `tells_refusals`: a request that is refused leaves a trace, too.
    """

    receive_start: str
    receive_end: str
    send_start: str
    send_end: str
    tells_refusals: bool


class InferenceCall(Protocol[BodyT]):
    """A frontend's side of one inference. All on the loop's thread, but what takes long."""

    def decode(self, served: ServedModel, inference: Inference) -> InferRequest:
        """The request, with `inference` as its sink and its regions. Raises ServerError."""

    def fields(self) -> Iterable[tuple[bytes, bytes]]:
        """The headers or metadata."""

    @property
    def forwards(self) -> bool:
        """Whether these may be forwarded to the model."""

    def encode(self, served: ServedModel, response: InferResponse) -> BodyT:
        """A response without error, as it is sent. Raises ServerError."""

    def takes_long(self, response: InferResponse) -> bool:
        """Whether another thread is to `encode`: of several responses the order would be lost."""

    def reply(self, body: BodyT, *, final: bool) -> None:
        """Send what `encode` gave; `final` if nothing follows."""

    def fail(self, error: ServerError, *, final: bool) -> None:
        """Send the error that the model answered with, or that `encode` raised."""

    def backlog(self, backlogs: Backlogs) -> Backlog | None:
        """Where responses wait for the client, of a model that sends any number; None: nowhere."""

    @property
    def end(self) -> Callable[[], None] | None:
        """Called for an empty response, which is no answer but the end of a stream of them.

        None where there is to be one response, and it is that.
        """


_ANY = 2**64  # bytes


@dataclass(eq=False)
class TakesLong(Exception):
    """To read the request would hold up the loop: `start_later` is to be called, with `begun`."""

    begun: Inference


#: Does the first on another thread, then calls the second with its result on the loop's, or the
#: third with what it raised.
Apart = Callable[[Callable[[], Any], Callable[[Any], None], Callable[[Exception], None]], None]


class Inferences:
    """Finds models, and sends them requests. On the loop's thread.

    `post` brings a response from any thread to `deliver` on the loop's; `apart` does what is long.
    """

    def __init__(
        self,
        gateway: Gateway,
        shared_memory: SharedMemory,
        clock: Clock,
        events: TraceEvents,
        post: Callable[[tuple[Inference, InferResponse]], None],
        apart: Apart,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._apart = apart
        self._gateway = gateway
        self._shared_memory = shared_memory
        self._clock = clock
        self._events = events
        self._post = post
        self._forwarding = forwarding

    def find(self, name: str, version: int, *, refuses_decoupled: str = "") -> ServedModel:
        """The loaded model. Raises ServerError.

        With `refuses_decoupled`, that is said of a model that may answer more than once.
        """
        served = self._gateway.find(name, version)
        if refuses_decoupled and served.config.decoupled:
            raise unsupported(refuses_decoupled)
        return served

    def start(
        self, served: ServedModel, call: InferenceCall[Any], at_once: int = _ANY
    ) -> Inference:
        """Send the request of `call` to its model, whose responses `call` is given later.

        Raises ServerError if it is refused, and then `call` hears nothing; TakesLong if more than
        `at_once` bytes of its inputs are in regions, or very many of them are strings.
        """
        inference = self._begin(served, call)
        inference.at_once = at_once
        try:
            request = call.decode(served, inference)
            if at_once != _ANY:
                for tensor in request.inputs.values():
                    if tensor.has_uncounted_strings:
                        raise inference.taking_long()
        except BaseException as error:
            if not isinstance(error, TakesLong):
                inference.refused()
            raise
        self._send(inference, request)
        return inference

    def start_later(
        self,
        served: ServedModel,
        call: InferenceCall[Any],
        find_again: Callable[[], ServedModel],
        started: Callable[[Inference], None],
        failed: Callable[[Exception], None],
        begun: Inference | None = None,
    ) -> None:
        """`start`, where reading the request takes long: that is done apart.

        `find_again` finds the model once more: another may have taken its place by then.
        """
        inference = begun or self._begin(served, call)

        def refused(error: Exception) -> None:
            inference.refused()
            failed(error)

        def send(request: InferRequest) -> None:
            try:
                found = find_again()
            except Exception as error:
                refused(error)
                return
            sent = inference
            try:
                if found is served:
                    self._send(inference, request)
                else:
                    inference.refused()
                    sent = self.start(found, call)
            except Exception as error:
                failed(error)
            else:
                started(sent)

        def read() -> InferRequest:
            request = call.decode(served, inference)
            for tensor in request.inputs.values():
                tensor.count_strings()
            return request

        self._apart(read, send, refused)

    def _begin(self, served: ServedModel, call: InferenceCall[Any]) -> Inference:
        """A request that has been received, and of which nothing is read yet."""
        received_ns = self._clock.monotonic_ns()
        trace: RequestTrace | None = None
        # Before the request is read: one that is refused has been received all the same.
        tracing = self._gateway.tracing
        if tracing.is_on:
            trace = tracing.sample(served.config.name, call.fields)
            if trace is not None:
                trace.stamp(self._events.receive_start, received_ns)
                trace.stamp(self._events.receive_end, received_ns)
        # The sink first: reading the request leases regions through it.
        return Inference(
            *(served, call, received_ns, trace, self._events),
            *(self._shared_memory, self._post, self._apart),
        )

    def _send(self, inference: Inference, request: InferRequest) -> None:
        """Send to its model what was read of a request. Raises ServerError if it is refused."""
        try:
            inference.sent(request, self._forwarding, self._gateway.backlogs)
        except BaseException:
            inference.refused()
            raise


class Inference:
    """One request on its way: the sink of its responses, and the shared memory that it uses.

    It does not know the request, which knows it: a cycle would keep the inputs.
    """

    __slots__ = (
        "_apart",
        "_call",
        "_events",
        "_has_answer",
        "_lease",
        "_post",
        "_received_ns",
        "_served",
        "_shared_memory",
        "_trace",
        "at_once",
        "backlog",
        "cancellation",
    )

    cancellation: Cancellation
    at_once: int  # bytes that may still be read from regions on this thread

    def __init__(
        self,
        served: ServedModel,
        call: InferenceCall[Any],
        received_ns: int,
        trace: RequestTrace | None,
        events: TraceEvents,
        shared_memory: SharedMemory,
        post: Callable[[tuple[Inference, InferResponse]], None],
        apart: Apart,
    ) -> None:
        self._apart = apart
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
        self.at_once = _ANY

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        self.at_once -= byte_size
        if self.at_once < 0:
            raise self.taking_long()
        return self._leased().read(region, offset, byte_size)

    def taking_long(self) -> TakesLong:
        """Let go of what was read of the request: all of it is read once more, apart."""
        self.at_once = _ANY
        self._release()
        return TakesLong(self)

    def output_buffer(self, region: str, offset: int, byte_size: int) -> OutputBuffer:
        return self._leased().output_buffer(region, offset, byte_size)

    def _leased(self) -> RegionLease:
        if self._lease is None:
            self._lease = self._shared_memory.lease()
        return self._lease

    def send(self, response: InferResponse) -> None:
        if self.backlog is not None:
            self.backlog.add(response.outputs)
        self._post((self, response))

    def sent(
        self, request: InferRequest, forwarding: HeaderForwarding | None, backlogs: Backlogs
    ) -> None:
        """Send the request to its model, with the headers that it is to have."""
        served = self._served
        request.received_ns = self._received_ns
        request.model_version = served.version
        request.trace = self._trace
        if forwarding is not None and self._call.forwards:
            request.parameters = forwarding.added(request.parameters, self._call.fields())
        self.cancellation = request.cancellation
        if served.config.decoupled:
            request.cancellation.backlog = self.backlog = self._call.backlog(backlogs)
        served.infer(request)

    def refused(self) -> None:
        """The request did not get to its model."""
        self._release()
        # Over gRPC the trace is dropped, as in Triton.
        if self._trace is not None and self._events.tells_refusals:
            self._trace.close()

    def deliver(self, response: InferResponse) -> None:
        """Give a response to the frontend, and clean up after the last; on the loop's thread."""
        call, trace = self._call, self._trace
        if response.empty and call.end is not None:
            self._release()
            call.end()
            if trace is not None and response.final:
                trace.close()
            return
        if call.end is None and not response.final:
            self._has_answer = True  # another one follows, and that is one too many
            return
        if trace is not None:
            trace.stamp(self._events.send_start)
        if response.error is None and call.takes_long(response):
            self._apart(
                lambda: self._encoded(response),
                lambda encoded: self._answer(response, *encoded),
                lambda defect: self._answer(response, None, internal(str(defect))),
            )
        else:
            self._answer(response, *self._encoded(response))

    def _encoded(self, response: InferResponse) -> tuple[object, ServerError | None]:
        """The body of the response, or why there is none."""
        if self._has_answer:
            return None, internal(_TWO_RESPONSES)
        if response.error is not None:
            return None, response.error
        try:
            return self._call.encode(self._served, response), None
        except ServerError as fault:
            return None, fault
        except Exception as defect:  # a defect of ours must not leave the client waiting
            log.exception("reply of %s", response.model_name)
            return None, internal(f"{type(defect).__name__}: {defect}")

    def _answer(self, response: InferResponse, body: object, error: ServerError | None) -> None:
        if response.final:
            self._release()  # before the reply: whoever reads it may unregister at once
        if error is None:
            self._call.reply(body, final=response.final)
        else:
            self._call.fail(error, final=response.final)
        if self._trace is not None:
            self._trace.stamp(self._events.send_end)
            if response.final:
                self._trace.close()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()


def deliver(posted: tuple[Inference, InferResponse]) -> None:
    """Take what an `Inference` has posted; on the loop's thread."""
    inference, response = posted
    try:
        inference.deliver(response)
    finally:
        if inference.backlog is not None:
            inference.backlog.handled()
