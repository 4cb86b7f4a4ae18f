"""What a replay sends when: pure, from a capture's requests to steps.

Order is kept where a client may have relied on it: on a connection, within a sequence, and around
requests that change the server, such as a registration or the loading of a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from triton_replay.capture.records import Request
from triton_replay.protocol.http_bodies import INFERENCE, sequence_of


class Step(NamedTuple):
    """One request: sent at `due`, but not before all steps of `after` are answered."""

    request: Request
    due: int
    """Nanoseconds after the replay's beginning; 0 for as soon as can be."""
    after: tuple[int, ...]
    """Indexes of earlier steps."""


@dataclass(frozen=True)
class Plan:
    """All steps, in the order in which the requests were recorded."""

    steps: tuple[Step, ...]
    left_out: Mapping[str, int]
    """Requests that cannot be sent, by reason."""

    @property
    def lanes(self) -> dict[int, list[int]]:
        """The indexes of the steps of each connection."""
        found: dict[int, list[int]] = {}
        for index, step in enumerate(self.steps):
            found.setdefault(step.request.connection, []).append(index)
        return found


def plan_replay(requests: Iterable[Request], speed: float | None) -> Plan:
    """Plan a replay, `speed` times as quick as the recording; None for as quick as can be."""
    left_out: Counter[str] = Counter()
    sendable = []
    for request in sorted(requests, key=lambda request: (request.at, request.number)):
        reason = _why_not(request)
        if reason:
            left_out[reason] += 1
        else:
            sendable.append(request)
    first = sendable[0].at if sendable else 0
    steps = []
    by_sequence: dict[tuple[str, str], int] = {}
    last_change = -1
    since_change: list[int] = []
    for index, request in enumerate(sendable):
        after = {last_change}
        found = INFERENCE.match(request.target.partition("?")[0])
        if found:
            sequence = sequence_of(request.headers, request.body)
            if sequence:
                key = found["model"], sequence
                after.add(by_sequence.get(key, -1))
                by_sequence[key] = index
        elif request.method != "GET":
            # What was sent before must not meet what it changes either.
            after.update(since_change)
            last_change, since_change = index, []
        if index != last_change:
            since_change.append(index)
        due = 0 if speed is None else round((request.at - first) / speed)
        steps.append(Step(request, due, tuple(sorted(after - {-1}))))
    return Plan(tuple(steps), left_out)


def _why_not(request: Request) -> str:
    if not request.whole:
        return "requests whose bodies are not in the capture"
    if request.protocol == "grpc":
        return "gRPC calls, which are recorded only"
    path = request.target.partition("?")[0]
    if "sharedmemory/" in path or b'"shared_memory_region"' in bytes(request.body):
        return "requests in shared memory, whose contents are not in the capture"
    return ""
