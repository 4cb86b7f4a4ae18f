"""A sequence's requests in their order, and the slot of an instance where they are executed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from reference_server.core.request import InferRequest
from reference_server.core.tensor import Tensor


@dataclass(slots=True, eq=False)
class Line:
    """One sequence. Without a `slot` it stands in the backlog.

    `waiting` are its requests that have not been given out, `executing` how many have. `is_over`:
    its last request has come, so nothing joins any more; `has_expired`: because none came for too
    long. `seen_ns` is when the newest request came,
    `expires_ns` when it has waited in the backlog for too long. `states` are what the last request
    left to the next, by the name of the input.
    """

    key: int | str
    seen_ns: int
    slot: Slot | None = None
    waiting: deque[InferRequest] = field(default_factory=deque)
    executing: int = 0
    is_over: bool = False
    has_expired: bool = False
    expires_ns: int | None = None
    states: dict[str, Tensor] = field(default_factory=dict)

    @property
    def is_cancelled(self) -> bool:
        """True if somebody has given up one of the waiting requests."""
        return any(request.cancellation.is_cancelled for request in self.waiting)


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one sequence in the batches of `instance`; `number` counts from 0 in each."""

    instance: int
    number: int
    line: Line | None = None
