"""The detector of deadlocks between instances that wait for responses of other models (BLS).

Only waits that can never end are refused. A waiting instance is stuck in two cases: a stuck
instance executes the awaited request; or no instance has started the awaited request, and all
instances that could start it are stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reference_server.core.request import InferRequest


@dataclass(slots=True, eq=False)
class InstanceGroup:
    """The instances of one loaded version of a model; `size` is their number."""

    model: str
    size: int


@dataclass(slots=True, eq=False)
class Member:
    """One instance of a group."""

    group: InstanceGroup
    name: str


class _Waiting(NamedTuple):
    member: Member
    batch: Sequence[InferRequest]
    request: InferRequest
    target: InstanceGroup


class DeadlockDetector:
    """Records which instance waits for which model, and refuses deadlocks.

    Not thread-safe: the caller serializes all calls.
    """

    def __init__(self) -> None:
        self._waits: dict[Member, _Waiting] = {}

    def __repr__(self) -> str:
        return f"DeadlockDetector({', '.join(member.name for member in self._waits)})"

    def begin(
        self,
        member: Member,
        batch: Sequence[InferRequest],
        request: InferRequest,
        target: InstanceGroup,
    ) -> str | None:
        """Record that `member`, which executes `batch`, waits for `target` to answer `request`.

        Returns:
            None if `member` may wait. If the wait would never end, a description of the cycle; then
            nothing is recorded.
        """
        self._waits[member] = _Waiting(member, batch, request, target)
        if len(self._waits) == 1 and member.group is not target:
            return None  # the usual case
        stuck = self._stuck()
        if member not in stuck:
            return None
        cycle = self._cycle_of(member, stuck)
        del self._waits[member]
        return cycle

    def end(self, member: Member) -> None:
        """Record that `member` no longer waits."""
        self._waits.pop(member, None)

    def _stuck(self) -> set[Member]:
        """Return the largest set of waiting members that wait only for members of this set."""
        stuck = set(self._waits)
        while freed := {member for member in stuck if not self._blockers(member, stuck)}:
            stuck -= freed
        return stuck

    def _blockers(self, member: Member, stuck: set[Member]) -> Sequence[Member]:
        """Return the members of `stuck` that block `member`; empty if it may get its response."""
        wait = self._waits[member]
        executing = self._executing(wait.request)
        if executing is not None:
            return [executing] if executing in stuck else []
        if wait.request.is_started:
            return []
        group = [other for other in self._waits if other in stuck and other.group is wait.target]
        return group if len(group) == wait.target.size else []

    def _executing(self, request: InferRequest) -> Member | None:
        for wait in self._waits.values():
            if any(executed is request for executed in wait.batch):
                return wait.member
        return None

    def _cycle_of(self, member: Member, stuck: set[Member]) -> str:
        path: list[Member] = []
        while member not in path:
            path.append(member)
            member = self._blockers(member, stuck)[0]
        return _described(self._waits[each] for each in path[path.index(member) :])


def _described(cycle: Iterable[_Waiting]) -> str:
    return ", ".join(f"'{wait.member.name}' waits for '{wait.target.model}'" for wait in cycle)
