"""Business logic scripting: a request of a model's own, on its way to another model and back.

Tensors go by reference in both directions. Whoever is asked gets them protected, since the asking
model still has them: it is given a copy where it wants to write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from reference_server.backends.python_host.api import parameters as own
from reference_server.backends.python_host.api.calls import InstanceServer, Replies
from reference_server.backends.python_host.api.constants import MemoryType
from reference_server.backends.python_host.api.iterator import ResponseIterator
from reference_server.backends.python_host.api.response import InferenceResponse
from reference_server.backends.python_host.api.tensor import Tensor
from reference_server.core import tensor as core
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.request import InferRequest, Parameter, RequestTrace, SequenceFlag
from reference_server.core.response import InferResponse

Answer = InferenceResponse | ResponseIterator

_IS_DECOUPLED = (
    "Model {} is using the decoupled. The current BLS request call doesn't support models using "
    "the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
    "'async_exec' calls for decoupled models.'"
)
_NO_DEVICE = (
    "BackendMemory::Create, all allocation types failed:\n"
    "\tGPU: models of this server answer in the host's memory"
)


@dataclass(frozen=True, slots=True)
class Question:
    """What a model wants to know of which model; may be asked repeatedly."""

    model_name: str
    model_version: int
    request_id: str
    correlation_id: int | str
    inputs: Sequence[Tensor]
    requested_outputs: Sequence[str]
    flags: int
    timeout_us: int
    memory: MemoryType | None
    trace: RequestTrace | None
    parameters: dict[str, Parameter]

    def ask(self, server: InstanceServer, *, decoupled: bool) -> Answer:
        """The answer, waiting for the first response.

        What keeps the request from being sent is an answer too. Raises TritonModelException only
        outside `execute`.
        """
        server.check_stage()
        replies = Replies()
        request = self.request(replies)
        refusal = self._send(server, request, decoupled=decoupled, halts=True)
        return self._answer(request, replies, refusal, decoupled=decoupled)

    def ask_later(self, server: InstanceServer, *, decoupled: bool) -> asyncio.Future[Answer]:
        """The same, without waiting, on the running event loop. Raises RuntimeError without one."""
        loop = asyncio.get_running_loop()
        server.check_stage()
        future: asyncio.Future[Answer] = loop.create_future()

        def finish() -> None:
            if not future.done():
                future.set_result(self._answer(request, replies, None, decoupled=decoupled))

        def heard() -> None:
            if not future.done() and not loop.is_closed():
                loop.call_soon_threadsafe(finish)

        replies = Replies(heard)
        request = self.request(replies)
        refusal = self._send(server, request, decoupled=decoupled, halts=False)
        if refusal is not None:
            future.set_result(self._answer(request, replies, refusal, decoupled=decoupled))
        return future

    def request(self, replies: Replies) -> InferRequest:
        """The server's request, without inputs yet; the responses come to `replies`."""
        return InferRequest(
            self.model_name,
            {},
            replies,
            model_version=self.model_version,
            id=self.request_id,
            requested_outputs=tuple(dict.fromkeys(self.requested_outputs)),
            parameters=self.parameters,
            correlation_id=self.correlation_id,
            flags=SequenceFlag(self.flags),
            timeout_us=self.timeout_us,
        )

    def _send(
        self, server: InstanceServer, request: InferRequest, *, decoupled: bool, halts: bool
    ) -> ServerError | None:
        """Send `request`; returns why it is not sent."""
        calls = server.calls
        try:
            if not calls.is_ready(self.model_name, self.model_version):
                raise invalid_arg(
                    "Failed for execute the inference request. "
                    f"Model '{self.model_name}' is not ready."
                )
            if not decoupled and calls.is_decoupled(self.model_name, self.model_version):
                raise invalid_arg(_IS_DECOUPLED.format(self.model_name))
            if not own.are_sendable(self.parameters):
                raise invalid_arg("Unsupported value type on parameters")
            request.inputs = self._tensors(request)
            if self.trace is not None:
                request.trace = self.trace.child()
            calls.infer(request, server.halted() if halts else None)
        except ServerError as error:
            if request.trace is not None:
                request.trace.close()
            return internal(f"Model {self.model_name} - Error when running inference: {error}")
        return None

    def _tensors(self, request: InferRequest) -> dict[str, core.Tensor]:
        tensors: dict[str, core.Tensor] = {}
        for tensor in self.inputs:
            name = tensor.name()
            if name in tensors:
                raise invalid_arg(f"{request.label} input '{name}' already exists in request")
            tensors[name] = tensor._core.protected()
        return tensors

    def _answer(
        self,
        request: InferRequest,
        replies: Replies,
        refusal: ServerError | None,
        *,
        decoupled: bool,
    ) -> Answer:
        if refusal is not None:
            replies = _refused(request, refusal)
        first = replies.get(0)
        assert first is not None
        if self.memory is MemoryType.TRITONSERVER_MEMORY_GPU and first.error is None:
            replies = _refused(request, internal(_NO_DEVICE))
        answers = ResponseIterator._of(replies, request.cancellation)
        if decoupled:
            return answers
        return next(answers)


def _refused(request: InferRequest, error: ServerError) -> Replies:
    replies = Replies()
    replies.send(InferResponse(request.model_name, request.model_version, request.id, error=error))
    return replies
