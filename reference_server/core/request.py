"""An inference request on its way from a frontend to a model."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from reference_server.core.cancellation import Cancellation
from reference_server.core.response import InferResponse, Timing
from reference_server.core.tensor import Tensor

Parameter = bool | int | float | str
LATEST = -1


class SequenceFlag(enum.IntFlag):
    """What `flags()` of a request tells a model."""

    NONE = 0
    START = 1
    END = 2


class ResponseSink(Protocol):
    """Where the responses to one request go: any number of them, in order, the last one final.

    Whoever is between a request and its frontend (an ensemble, a cache, an ordered queue) puts
    a sink of its own in front of the one that it found.
    """

    def send(self, response: InferResponse) -> None:
        """Take one response; the last has `final` set. Called from any thread; never blocks."""


class RequestTrace(Protocol):
    """Records what happens to one request. Any thread, one at a time.

    The front that began it closes it; the trace of an ensemble's step ends with its answer.
    """

    def stamp(self, name: str, ns: int | None = None) -> None:
        """Record that `name` happened at `ns` of the monotonic clock, or now."""

    def accepted(self, model: str, version: int, request: InferRequest) -> None:
        """The request has passed its checks and is queued."""

    def answered(
        self, outputs: Sequence[Tensor], execution_ns: tuple[int, int, int] | None = None
    ) -> None:
        """The request has its answer, with these outputs, or none if it is an error.

        `execution_ns` are when an instance began, had its inputs, and had its outputs.
        """

    def child(self) -> RequestTrace:
        """The trace of a request that is sent on behalf of this one."""

    def close(self) -> None:
        """Nothing more will be recorded."""


@dataclass(slots=True)
class InferRequest:
    """One request. Belongs to one holder at a time: front, scheduler, instance.

    `inputs` keeps the client's order. `requested_outputs` is empty when all are wanted.
    `batch_key`: only requests with equal keys may share a batch. `batch_size` is 0 for a request of
    no client, which fills the place of a sequence that has none.
    `*_ns` are readings of the monotonic clock in nanoseconds; 0 means not reached yet.
    `cancellation` is shared with what is done on behalf of this request (an ensemble's steps).
    `trace` is None unless this request is recorded. `is_begun`: an instance has been given it.
    `timed`, if anybody wants to know, is told of an execution that has not given its response.
    """

    model_name: str
    inputs: dict[str, Tensor]
    sink: ResponseSink
    model_version: int = LATEST
    id: str = ""
    requested_outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    correlation_id: int | str = 0
    flags: SequenceFlag = SequenceFlag.NONE
    priority: int = 0
    timeout_us: int = 0
    batch_size: int = 1
    batch_key: Hashable = None
    received_ns: int = 0
    queued_ns: int = 0
    cancellation: Cancellation = field(default_factory=Cancellation)
    trace: RequestTrace | None = None
    is_begun: bool = False
    timed: Callable[[Timing], None] | None = None

    @property
    def label(self) -> str:
        """How texts about this request begin: `[request id: <id>]`, as Triton prints it."""
        return f"[request id: {self.id or '<id_unknown>'}]"
