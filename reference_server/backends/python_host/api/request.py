"""`InferenceRequest`: one request, as a model receives it or sends it to another model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol, overload

from reference_server.backends.python_host.api import parameters as own
from reference_server.backends.python_host.api.asking import Answer, Question
from reference_server.backends.python_host.api.calls import InstanceServer, Replies
from reference_server.backends.python_host.api.constants import TRITONSERVER_REQUEST_RELEASE_ALL
from reference_server.backends.python_host.api.errors import TritonModelException
from reference_server.backends.python_host.api.iterator import ResponseIterator
from reference_server.backends.python_host.api.memory import PreferredMemory
from reference_server.backends.python_host.api.native import (
    MODULE,
    Native,
    incompatible_function,
)
from reference_server.backends.python_host.api.questions import (
    LEFT_OUT,
    UNTRACED,
    checked_question,
)
from reference_server.backends.python_host.api.response import InferenceResponse
from reference_server.backends.python_host.api.sender import InferenceResponseSender
from reference_server.backends.python_host.api.tensor import Tensor
from reference_server.backends.python_host.api.trace import InferenceTrace
from reference_server.core.request import LATEST, InferRequest

_new = object.__new__
#: One for all: a model's thread may ask for the sender while `execute` ends.
_opening = threading.Lock()
_compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Senders(Protocol):
    """What the requests of one instance have in common. Any thread."""

    @property
    def output_names(self) -> Collection[str]:
        """The outputs that the model declares."""

    def open(self, request: InferRequest) -> InferenceResponseSender:
        """A sender of responses to `request`, which has no other that is open."""


class InferenceRequest(Native):
    """One request of the batch that `execute` is given; each keeps its own shapes.

    Or one that a model makes, to ask another with `exec` or `async_exec`: `inputs`,
    `requested_output_names` (none means all) and `model_name` must be given. `model_version` -1 is
    the latest, `timeout` are microseconds, `trace` is that of a request on whose behalf it is sent.
    Raises TypeError for arguments of other types, TritonModelException for other values.

    `_request` is the server's request, `_inputs` its tensors once somebody asked for them,
    `_question` what a model's own request asks.
    """

    __slots__ = (
        "_flags",
        "_inputs",
        "_is_answered",
        "_question",
        "_release_flags",
        "_request",
        "_sender",
        "_senders",
    )
    __module__ = MODULE

    #: None outside an instance; see `bound_request`.
    _instance: ClassVar[InstanceServer | None] = None
    _request: InferRequest
    _inputs: list[Tensor] | None
    _flags: int
    _release_flags: int
    _question: Question | None
    _senders: Senders
    _sender: InferenceResponseSender | None  # once somebody asked for it
    _is_answered: bool  # by what `execute` returned or raised

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = LEFT_OUT,
        requested_output_names: Sequence[str] = LEFT_OUT,
        model_name: str = LEFT_OUT,
        model_version: int = LATEST,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = LEFT_OUT,
        trace: InferenceTrace = UNTRACED,
        parameters: own.Parameters | None = None,
    ) -> None:
        question = checked_question(
            request_id=request_id,
            correlation_id=correlation_id,
            inputs=inputs,
            requested_output_names=requested_output_names,
            model_name=model_name,
            model_version=model_version,
            flags=flags,
            timeout=timeout,
            preferred_memory=preferred_memory,
            trace=trace,
            parameters=parameters,
        )
        self._question = question
        self._request = question.request(Replies())
        self._request.trace = question.trace
        self._inputs = list(question.inputs)
        self._flags = question.flags
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        self._senders = _Unanswerable()
        self._sender = None
        self._is_answered = False

    @classmethod
    def _received(cls, request: InferRequest, senders: Senders) -> InferenceRequest:
        self = _new(cls)
        self._request = request
        self._inputs = None
        self._flags = request.flags
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        self._senders = senders
        self._sender = None
        self._is_answered = False
        self._question = None
        return self

    def inputs(self) -> list[Tensor]:
        """The inputs in the order in which the client sent them: a new list of the same tensors.

        Optional inputs that the client left out are absent.
        """
        if self._inputs is None:
            self._inputs = [Tensor._received(tensor) for tensor in self._request.inputs.values()]
        return self._inputs.copy()

    def request_id(self) -> str:
        """The client's identifier, empty if it gave none."""
        return self._request.id

    def correlation_id(self) -> int | str:
        """The sequence that the request belongs to, 0 if to none."""
        return self._request.correlation_id

    def requested_output_names(self) -> set[str]:
        """The outputs that the client wants, in a new set: all declared ones if it named none."""
        if not self._request.batch_size:  # nobody asks: it only fills a place
            return set()
        return set(self._request.requested_outputs or self._senders.output_names)

    def parameters(self) -> str:
        """The request's parameters as a JSON object, without those that the server consumes."""
        if self._question is not None:
            return own.as_text(self._question.parameters)
        return _compact_json(dict(self._request.parameters))

    def flags(self) -> int:
        """The sequence flags: START is bit 0, END is bit 1."""
        return int(self._flags)

    def set_flags(self, flags: int) -> None:
        """Replace the flags that this object shows."""
        if not isinstance(flags, int) or not 0 <= flags < 1 << 32:
            raise incompatible_function(
                "set_flags", f"(self: {MODULE}.InferenceRequest, arg0: int) -> None", self, flags
            )
        self._flags = flags

    def set_release_flags(self, flags: int) -> None:
        """Say what becomes of the request after `execute`: with RESCHEDULE it is given again."""
        if not isinstance(flags, int) or not 0 <= flags < 1 << 32:
            raise incompatible_function(
                "set_release_flags",
                f"(self: {MODULE}.InferenceRequest, arg0: int) -> None",
                self,
                flags,
            )
        self._release_flags = flags

    def get_response_sender(self) -> InferenceResponseSender:
        """What sends responses to this request, instead of `execute`: each time the same object.

        Of a request that is answered already it is a closed one.
        """
        if self._sender is None:
            with _opening:
                if self._sender is None:
                    sender = self._senders.open(self._request)
                    if self._is_answered:
                        sender._retire()
                    self._sender = sender
        return self._sender

    def _settle(self) -> InferenceResponseSender | None:
        """Note that `execute` has answered; the sender that somebody has got before, if any."""
        with _opening:
            self._is_answered = True
            return self._sender

    def timeout(self) -> int:
        """The client's time limit in microseconds, 0 if it set none."""
        return self._request.timeout_us

    def is_cancelled(self) -> bool:
        """Whether the client has given up."""
        return self._request.cancellation.is_cancelled

    def trace(self) -> InferenceTrace:
        """The request's trace, for requests that are sent on its behalf."""
        return InferenceTrace._of(self._request.trace)

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...

    @overload
    def exec(self, decoupled: Literal[True]) -> ResponseIterator: ...

    def exec(self, decoupled: bool = False) -> Answer:
        """Ask the model; blocks until its first response is there.

        Returns an InferenceResponse, or with `decoupled` a ResponseIterator. Whatever fails is an
        error in a response. Raises TritonModelException outside `execute`.
        """
        question, server = self._asked()
        return question.ask(server, decoupled=bool(decoupled))

    @overload
    def async_exec(
        self, decoupled: Literal[False] = False
    ) -> asyncio.Future[InferenceResponse]: ...

    @overload
    def async_exec(self, decoupled: Literal[True]) -> asyncio.Future[ResponseIterator]: ...

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """Ask the model without waiting: a future of what `exec` returns, on the running loop.

        Raises RuntimeError where no loop runs, and TritonModelException outside `execute`.
        """
        question, server = self._asked()
        return question.ask_later(server, decoupled=bool(decoupled))

    def _asked(self) -> tuple[Question, InstanceServer]:
        server = self._instance
        if server is None:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        if self._question is not None:
            return replace(self._question, flags=self._flags), server
        request = self._request
        return Question(
            request.model_name,
            request.model_version,
            request.id,
            request.correlation_id,
            self.inputs(),
            request.requested_outputs,
            self._flags,
            request.timeout_us,
            None,
            None,
            dict(request.parameters),
        ), server


class _Unanswerable:
    """The senders of requests that the model has made itself."""

    output_names = frozenset[str]()

    def open(self, request: InferRequest) -> InferenceResponseSender:
        """None: nobody waits for such a sender's responses."""
        raise TritonModelException(
            "Unable to send response. Response sender has no reference to the decoupled state of "
            "the model."
        )


def bound_request(server: InstanceServer) -> type[InferenceRequest]:
    """`InferenceRequest` as the model of one instance sees it."""

    class BoundRequest(InferenceRequest):
        __slots__ = ()
        __module__ = MODULE
        _instance = server

    BoundRequest.__name__ = BoundRequest.__qualname__ = InferenceRequest.__name__
    return BoundRequest
