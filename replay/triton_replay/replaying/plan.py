"""The plan of a replay: when each request is sent, and which requests must be complete before.

The recorded order is kept where a client may rely on it: on a connection, within a sequence, and
around requests that change the server, such as the loading of a model.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request
from triton_replay.wire.bodies import INFERENCE, Body, NotUnderstood, inflate, json_of, sequence_of
from triton_replay.wire.grpc_messages import (
    is_inference,
    model_of_call,
    sequence_of_call,
    split_messages,
)

_READ_ONLY: Final = (
    "/ServerLive",
    "/ServerReady",
    "/ModelReady",
    "/ServerMetadata",
    "/ModelMetadata",
    "/ModelConfig",
    "/ModelStatistics",
    "/RepositoryIndex",
    "MemoryStatus",
    "/Check",
    "/Watch",
)
"""Path suffixes of gRPC calls that do not change the server."""
_INDEX: Final = "/v2/repository/index"
"""Path of a query that uses POST."""

FOLLOWING: Final = 10
"""Smallest number of requests after a response that shows whether a load is a closed loop."""
AT_ONCE: Final = 1_000_000
"""A request within this many nanoseconds of a response was sent because of the response."""


class Step(NamedTuple):
    """One request. It is sent when it is due and the steps in `after` have responses."""

    exchange: Exchange
    lane: int
    """Steps of one lane are sent in order, each after the response to the previous one."""
    due: int
    """Nanoseconds after the start of the replay; 0 for as soon as possible."""
    after: tuple[int, ...]
    """Indexes of earlier steps that must be complete."""
    think: int | None = None
    """Replaces `due` unless None: nanoseconds after the lane's previous response."""


@dataclass(frozen=True)
class Plan:
    """The steps of a replay, in the recorded order."""

    steps: tuple[Step, ...]
    left_out: Mapping[str, int]
    """Numbers of requests that cannot be sent, by reason."""
    closed: bool = False
    """True if each request is due relative to the previous response of its lane."""

    @property
    def lanes(self) -> dict[int, list[int]]:
        """Indexes of the steps of each lane."""
        found: dict[int, list[int]] = {}
        for index, step in enumerate(self.steps):
            found.setdefault(step.lane, []).append(index)
        return found


def plan_replay(exchanges: Iterable[Exchange], speed: float | None, loop: str = "open") -> Plan:
    """Plan a replay.

    Args:
        exchanges: The recorded requests.
        speed: Factor of the recorded speed; None for as fast as possible.
        loop: "open" sends at the recorded times, "closed" at the recorded think time after the
            previous response of the lane, "auto" as the recorded clients did.
    """
    left_out: Counter[str] = Counter()
    sendable: list[Exchange] = []
    for exchange in sorted(exchanges, key=lambda one: (one.request.at, one.request.number)):
        reason = why_not_sent(exchange)
        if reason:
            left_out[reason] += 1
        else:
            sendable.append(exchange)
    first = sendable[0].request.at if sendable else 0
    lanes = _Lanes()
    steps = []
    by_sequence: dict[tuple[str, str], int] = {}
    last_change = -1
    since_change: list[int] = []
    for index, exchange in enumerate(sendable):
        request = exchange.request
        after = {last_change}
        sequence = sequence_key(request)
        if sequence is not None:
            after.add(by_sequence.get(sequence, -1))
            by_sequence[sequence] = index
        if changes_the_server(request):
            # Earlier requests must be complete before the server changes.
            after.update(since_change)
            last_change, since_change = index, []
        else:
            since_change.append(index)
        due = 0 if speed is None else round((request.at - first) / speed)
        steps.append(Step(exchange, lanes.of(exchange), due, tuple(sorted(after - {-1}))))
    thinks = _think_times(steps)
    closed = loop == "closed" or (loop == "auto" and _is_closed_loop(thinks))
    if speed is None or not closed:
        return Plan(tuple(steps), left_out)
    for index, (think, _) in thinks.items():
        steps[index] = steps[index]._replace(think=round(think / speed))
    return Plan(tuple(steps), left_out, closed=True)


def _think_times(steps: Iterable[Step]) -> dict[int, tuple[int, int]]:
    """Return the recorded think time before each request, and the previous request's latency.

    Returns:
        Nanoseconds by index, without the first request of each lane. The latency is 0 if there
        was no response.
    """
    found = {}
    previous: dict[int, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        request, response = step.exchange.request, step.exchange.response
        if step.lane in previous:
            at, end = previous[step.lane]
            found[index] = max(request.at - end, 0), end - at
        previous[step.lane] = request.at, response.end if response else request.end
    return found


def _is_closed_loop(thinks: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether three of four requests follow the previous response at once."""
    following = [(think, latency) for think, latency in thinks.values() if latency]
    if len(following) < FOLLOWING:
        return False
    latencies = sorted(latency for _, latency in following)
    at_once = max(AT_ONCE, latencies[len(latencies) // 2] // 10)
    return sum(think <= at_once for think, _ in following) >= 0.75 * len(following)


class _Lanes:
    """Assigns requests to lanes.

    Each HTTP connection is a lane. A gRPC connection has as many lanes as it had concurrent calls:
    a call uses a lane whose previous call has ended.
    """

    def __init__(self) -> None:
        self._count = 0
        self._of_http: dict[int, int] = {}
        self._of_grpc: dict[int, list[tuple[int, int]]] = {}

    def of(self, exchange: Exchange) -> int:
        request = exchange.request
        if request.protocol == "http":
            if request.connection not in self._of_http:
                self._of_http[request.connection] = self._next()
            return self._of_http[request.connection]
        free = self._of_grpc.setdefault(request.connection, [])
        lane = heappop(free)[1] if free and free[0][0] <= request.at else self._next()
        end = exchange.response.end if exchange.response else request.end
        heappush(free, (end, lane))
        return lane

    def _next(self) -> int:
        self._count += 1
        return self._count - 1


def sequence_key(request: Request) -> tuple[str, str] | None:
    """Return the model and the correlation id of a request in a sequence, otherwise None."""
    if request.protocol == "grpc":
        if not is_inference(request.target):
            return None
        sequence = sequence_of_call(request.body)
        return (model_of_call(request.body), sequence) if sequence else None
    found = INFERENCE.match(request.target.partition("?")[0])
    if not found:
        return None
    sequence = sequence_of(request.headers, request.body)
    return (found["model"], sequence) if sequence else None


def in_sequence(request: Request) -> bool:
    """Return whether a request has a correlation id, so that its model keeps state."""
    return sequence_key(request) is not None


def changes_the_server(request: Request) -> bool:
    """Return whether a request changes more than the state of a sequence."""
    if request.protocol == "grpc":
        return not is_inference(request.target) and not request.target.endswith(_READ_ONLY)
    path = request.target.partition("?")[0]
    return request.method != "GET" and path != _INDEX and not INFERENCE.match(path)


def why_not_sent(exchange: Exchange) -> str:
    """Return why a recorded request cannot be sent, or ""."""
    request = exchange.request
    sent = [request.body, *(message.body for message in exchange.messages if message.sent)]
    if not request.whole or not all(message.whole for message in exchange.messages if message.sent):
        return "requests without a body in the capture"
    if "sharedmemory" in request.target.lower() or any(
        b"shared_memory_region" in _content(request, body) for body in sent
    ):
        return "requests with shared memory, whose content is not in the capture"
    return ""


def _content(request: Request, body: Body) -> bytes:
    """Return a body, without compression and binary data if that is possible."""
    with contextlib.suppress(NotUnderstood):
        if request.protocol == "grpc":
            return b"".join(split_messages(body))
        return json_of(request.headers, inflate(request.headers, body))
    return bytes(body)
